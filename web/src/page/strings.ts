/** The phrases of the page in English, Turkish and Chinese. */

export const LANGUAGES = { en: "English", tr: "Türkçe", zh: "中文" } as const;
export type Language = keyof typeof LANGUAGES;

/** One row a phrase: English, Turkish, Chinese. `{}` is a place for a value; `{1}` for the second one. */
const TABLE = {
  translate: ["Translator", "Çevirmen", "翻译"],
  sentences: ["Sentences", "Cümleler", "句子"],
  calls: ["Calls", "Çağrılar", "调用"],
  playground: ["Playground", "Deneme alanı", "实验台"],
  language: ["Language", "Dil", "语言"],
  theme: ["Appearance", "Görünüm", "外观"],
  "theme-auto": ["As the system", "Sistemdeki gibi", "跟随系统"],
  "theme-light": ["Light", "Açık", "浅色"],
  "theme-dark": ["Dark", "Koyu", "深色"],
  source: ["Your text", "Metniniz", "原文"],
  placeholder: ["Type a sentence …", "Bir cümle yazın …", "输入一个句子……"],
  target: ["Translation", "Çeviri", "译文"],
  examples: ["Try", "Deneyin", "试一试"],
  search: ["How it searches", "Arama biçimi", "搜索方式"],
  greedy: ["the likeliest word each time (greedy)", "her seferinde en olası sözcük (açgözlü)", "每次取最可能的词（贪心）"],
  beam: ["try several: {} (beam)", "birkaç yol dene: {} (ışın)", "尝试多种：{}（束搜索）"],
  alternatives: ["Translations shown", "Gösterilen çeviriler", "显示的译文"],
  "the-best": ["the best", "en iyisini", "最佳译文"],
  "n-best": ["the {} best", "en iyi {} tanesini", "前 {} 个"],
  score: ["log-probability", "log-olasılık", "对数概率"],
  sure: ["how sure: {} a word", "ne kadar emin: sözcük başına {}", "把握：每词 {}"],
  parts: ["parts of words", "sözcük parçaları", "词的片段"],
  "not-learnt": ["not learnt:", "öğrenilmedi:", "没有学过："],
  "a-guess": ["The model has not learnt from any sentence with this word: what stands for it is a guess",
    "Model, içinde bu sözcük olan hiçbir cümle görmedi: yerine yazılan bir tahmindir", "模型没有学过含有这个词的句子，它的译法只是猜测"],
  ranked: ["how sure = e^(log-probability ÷ (5 + words))", "ne kadar emin = e^(log-olasılık ÷ (5 + sözcük))", "把握 = e^(对数概率 ÷ (5 + 词数))"],
  html: ["HTML tags", "HTML etiketleri", "HTML 标签"],
  more: ["More", "Daha fazla", "更多"],
  "more-words": ["Less likely words", "Daha az olası sözcükler", "更不可能的词"],
  forms: ["Table, SVG, PNG, PDF", "Tablo, SVG, PNG, PDF", "表格、SVG、PNG、PDF"],
  few: ["this search finds {} at most", "bu arama en çok {} tane bulur", "此搜索最多给出 {} 个"],
  speed: ["{} ms", "{} ms", "{} 毫秒"],
  cut: ["incomplete: reached the length limit", "eksik: uzunluk sınırına ulaştı", "不完整：已达长度上限"],
  repeated: ["incomplete: the model repeated itself", "eksik: model kendini yineledi", "不完整：模型重复了自己的输出"],
  lead: [
    "A small neural network{} that translates here in your browser. For each word that it writes you see which words it looks at, and you can change that.",
    "Burada, tarayıcınızda çeviren küçük bir sinir ağı{}. Yazdığı her sözcük için hangi sözcüklere baktığını görür, bunu değiştirebilirsiniz.",
    "一个在您的浏览器中翻译的小型神经网络{}。它写出每个词时看向哪些词，您都能看到，也能改动。",
  ],
  "to-begin": [
    "Type a sentence above, or try one that is offered: here you will see where each word of its translation looks.",
    "Yukarıya bir cümle yazın ya da önerilenlerden birini deneyin: çevirisindeki her sözcüğün nereye baktığı burada görünür.",
    "请在上方输入一个句子，或试试给出的例句：这里会显示译文的每个词看向哪里。",
  ],
  nothing: ["Nothing to translate yet.", "Henüz çevrilecek bir şey yok.", "还没有可翻译的内容。"],
  loading: ["Unpacking the model …", "Model açılıyor …", "正在载入模型……"],
  links: ["Where each word looks", "Her sözcük nereye bakıyor", "每个词看向哪里"],
  "links-help": [
    "Point at a word, or go from word to word with the arrow keys. Click, or press Enter, to open its step.",
    "Bir sözcüğün üzerine gelin ya da ok tuşlarıyla gezinin. Adımını açmak için tıklayın ya da Enter’a basın.",
    "指向一个词，或用方向键逐词移动；单击或按回车键展开该步。",
  ],
  map: ["All weights", "Bütün ağırlıklar", "全部权重"],
  "map-help": [
    "Rows are what was written, columns what was read. Arrow keys move from cell to cell.",
    "Satırlar yazılanlar, sütunlar okunanlardır. Ok tuşları hücreden hücreye geçer.",
    "行是写出的词，列是读入的词；方向键在格子间移动。",
  ],
  table: ["Table", "Tablo", "表格"],
  picture: ["Picture", "Resim", "图"],
  "too-long-for-links": [
    "{} × {} words: too many for lines between them; the map has all weights.",
    "{} × {} sözcük: aralarına çizgi çekilemeyecek kadar çok; haritada bütün ağırlıklar var.",
    "{} × {} 个词：太多，无法逐一连线；热图中有全部权重。",
  ],
  "tiles-help": [
    "Drag to move; turn the wheel, pinch, or press + and − to enlarge; Home shows all. Arrow keys go from cell to cell. Where cells are small, each point has the colour of the largest weight in it.",
    "Kaydırmak için sürükleyin; büyütmek için tekerleği çevirin, iki parmakla açın ya da + ve − tuşlarına basın; Home tümünü gösterir. Ok tuşları hücreden hücreye geçer. Hücreler küçükken her nokta içindeki en büyük ağırlığın rengindedir.",
    "拖动可平移；滚轮、双指或 + − 键可缩放；Home 键显示全部；方向键在格子间移动。格子很小时，每个点取其中最大权重的颜色。",
  ],
  read: ["Source", "Kaynak", "原文"],
  "zoom-in": ["Enlarge", "Büyüt", "放大"],
  "zoom-out": ["Make smaller", "Küçült", "缩小"],
  whole: ["Show all", "Tümünü göster", "显示全部"],
  "save-view": ["What is in view, as PNG", "Görünen bölüm, PNG olarak", "当前可见部分，存为 PNG"],
  "in-view": ["What is in view, as a table", "Görünen bölüm, tablo olarak", "当前可见部分的表格"],
  "at-most": ["at most {}", "en çok {}", "最大 {}"],
  blank: ["no number", "sayı yok", "无数值"],
  "no-attention": [
    "This model has no attention: it saw the whole sentence as one vector, and looked nowhere.",
    "Bu modelde dikkat yok: cümlenin tümünü tek bir vektör olarak gördü, hiçbir yere bakmadı.",
    "该模型没有注意力：它把整个句子看作一个向量，没有看向任何词。",
  ],
  looked: ["“{}” looked at “{}”: {}", "“{}”, “{}” sözcüğüne baktı: {}", "“{}”看向“{}”：{}"],
  "looked-most": ["“{}” looked at: {}", "“{}” şuralara baktı: {}", "“{}”看向：{}"],
  "looked-by": ["“{}” was looked at by: {}", "“{}” sözcüğüne bakanlar: {}", "看向“{}”的词：{}"],
  "token-label": ["{}, looks most at {}, {}", "{}, en çok {} sözcüğüne bakıyor, {}", "{}，最关注{}，{}"],
  "source-label": ["{}, a word that was read", "{}, okunan bir sözcük", "{}，读入的词"],
  step: ["Step {} of {}", "Adım {} / {}", "第 {} 步，共 {} 步"],
  end: ["end", "son", "结束"],
  before: ["Previous step", "Önceki adım", "上一步"],
  after: ["Next step", "Sonraki adım", "下一步"],
  where: ["Where it looks", "Nereye bakıyor", "看向哪里"],
  "where-help": [
    "Drag or type a weight to pin it. The other words share the rest, and the page translates the sentence again from this step.",
    "Bir ağırlığı sürükleyin ya da yazın: sabitlenir, kalanı ötekiler paylaşır ve cümle buradan yeniden yazılır.",
    "拖动或输入一个权重：它被固定，其余词分享剩下的权重，句子从这里重新写出。",
  ],
  word: ["word", "sözcük", "词"],
  "score-before": ["score", "puan", "得分"],
  weight: ["weight", "ağırlık", "权重"],
  "weight-of": ["Weight of {}", "{} ağırlığı", "“{}”的权重"],
  "percent-of": ["Weight of {}, in percent", "{} ağırlığı, yüzde", "“{}”的权重（百分比）"],
  unpin: ["Let go of {}", "{} serbest bırak", "取消固定“{}”"],
  likely: ["What it could write", "Ne yazabilir", "可能写出的词"],
  "likely-help": [
    "Choose another word. The page keeps the words before it and translates the rest again.",
    "Başka bir sözcük seçin: öncekiler kalır, gerisi yeniden yazılır.",
    "另选一个词：前面的保留，后面的重新写出。",
  ],
  inside: ["More: the numbers of this step", "Daha fazla: bu adımın sayıları", "更多：这一步的数值"],
  "inside-help": [
    "Each strip is a vector, from its first number to its last: teal above 0, orange below.",
    "Her şerit bir vektördür, ilk sayısından sonuncusuna: camgöbeği 0’ın üstü, turuncu altı.",
    "每条色带是一个向量，从第一个数到最后一个数：青色大于 0，橙色小于 0。",
  ],
  votes: [
    "What the words that were read add to the score of “{}” themselves",
    "Okunan sözcüklerin “{}” puanına kendilerinin kattığı",
    "读入的词自己给“{}”的得分加上的值",
  ],
  vote: ["adds", "kattığı", "加上"],
  query: ["Query: what it asks for", "Sorgu: ne arıyor", "查询：它在找什么"],
  context: ["Context: the weighted average", "Bağlam: ağırlıklı ortalama", "上下文：加权平均"],
  reset: ["Reset gate", "Sıfırlama kapısı", "重置门"],
  update: ["Update gate: how much is kept", "Güncelleme kapısı: ne kadarı kalıyor", "更新门：保留多少"],
  candidate: ["Candidate: what would be new", "Aday: yeni olacak olan", "候选：新的内容"],
  input: ["Input gate", "Giriş kapısı", "输入门"],
  forget: ["Forget gate", "Unutma kapısı", "遗忘门"],
  output: ["Output gate", "Çıkış kapısı", "输出门"],
  state: ["State after the step", "Adımdan sonraki durum", "这一步之后的状态"],
  mean: ["mean {}", "ortalama {}", "均值 {}"],
  vector: ["vector", "vektör", "向量"],
  least: ["least", "en küçük", "最小"],
  average: ["mean", "ortalama", "均值"],
  most: ["most", "en büyük", "最大"],
  changes: ["Changed by you", "Sizin değiştirdikleriniz", "您的改动"],
  "change-pin": ["step {}: {} at {}", "adım {}: {} = {}", "第 {} 步：{} = {}"],
  "change-word": ["step {}: “{}” chosen", "adım {}: “{}” seçildi", "第 {} 步：选了“{}”"],
  held: ["held: {}", "sabit tutulan: {}", "保持不变：{}"],
  was: ["without them: {}", "bunlar olmadan: {}", "未改动时：{}"],
  undo: ["Undo", "Geri al", "撤销"],
  redo: ["Redo", "Yinele", "重做"],
  clear: ["Start over", "Baştan", "全部还原"],
  "save-json": ["Everything as JSON", "Hepsi JSON olarak", "全部导出为 JSON"],
  link: ["Copy a link", "Bağlantıyı kopyala", "复制链接"],
  "link-here": ["Copy this address", "Bu adresi kopyalayın", "请复制此地址"],
  copied: ["Copied", "Kopyalandı", "已复制"],
  about: [
    "This page contains the whole model and makes no network requests. Your text stays in this browser.",
    "Bu sayfa modelin tümünü içerir ve hiçbir ağa bağlanmaz. Yazdıklarınız buradan çıkmaz.",
    "本页面包含整个模型，不访问任何网络；您输入的内容不会离开这里。",
  ],
  "about-plain": [
    "This page makes no network requests.",
    "Bu sayfa hiçbir ağa bağlanmaz.",
    "本页面不访问任何网络。",
  ],
  // The list of sentences
  "sentences-help": [
    "Point at a word to see what it looked at, or go from word to word with the arrow keys. Click, or press Enter, to keep it; Esc lets go.",
    "Nereye baktığını görmek için bir sözcüğün üzerine gelin ya da ok tuşlarıyla gezinin. Seçili tutmak için tıklayın ya da Enter’a basın; Esc bırakır.",
    "指向一个词即可看到它看向哪里，也可用方向键逐词移动；单击或按回车键将其固定，按 Esc 取消。",
  ],
  find: ["Find sentences", "Cümlelerde ara", "查找句子"],
  count: ["Sentences: {}", "Cümle sayısı: {}", "句子数：{}"],
  "count-found": ["Sentences: {} of {}", "Cümle sayısı: {} / {}", "句子数：{} / {}"],
  "none-found": ["No sentence has these words.", "Bu sözcüklerin geçtiği cümle yok.", "没有包含这些词的句子。"],
  reference: ["Reference", "Referans", "参考译文"],
  open: ["Open in the translator", "Çevirmende aç", "在翻译中打开"],
  // Calls of a model's attention
  "calls-count": ["Calls of attention: {}", "Dikkat çağrısı: {}", "注意力调用：{}"],
  "calls-first": ["Calls of attention: {}, the first {} of which are shown", "Dikkat çağrısı: {}; ilk {} tanesi gösteriliyor", "注意力调用：{}，显示前 {} 个"],
  "all-calls": ["All calls", "Bütün çağrılar", "全部调用"],
  recorded: ["Recorded: {}", "Kaydedilen: {}", "已记录：{}"],
  "call-overview": ["The map, pooled", "Harita, havuzlanmış", "汇聚后的热图"],
  "call-rows": ["The chosen queries, in the order in which they were asked for", "Seçilen sorgular, istendikleri sırayla", "所选的查询，按请求的顺序"],
  "call-sums": ["How much each key was looked at", "Her anahtara ne kadar bakıldığı", "每个键被看了多少"],
  "call-entropy": [
    "Mean entropy in nats, by layer and head: 0 where a head looks at one key alone",
    "Ortalama entropi (nat), katmana ve başlığa göre: başlık tek bir anahtara bakıyorsa 0",
    "各层各头的平均熵（奈特）：只看一个键的头为 0",
  ],
  "view-kind": ["Attention", "Dikkat", "注意力"],
  "view-self": ["Within the text", "Metnin içinde", "文本之内"],
  "view-encoder": ["Within the source", "Kaynağın içinde", "源文本之内"],
  "view-cross": ["From text to source", "Metinden kaynağa", "从文本到源文本"],
  "view-heads": ["Heads of a layer", "Bir katmanın başlıkları", "一层的各个头"],
  "view-heads-help": [
    "Lines connect each query (left) with the keys that it looks at most; the stronger the line, the larger the weight. Point at a token, or move with the arrow keys, to see its weights. Click a token, or press Enter, to keep its lines.",
    "Çizgiler her sorguyu (solda) en çok baktığı anahtarlara bağlar; çizgi ne kadar belirginse ağırlık o kadar büyüktür. Ağırlıklarını görmek için bir parçanın üzerine gelin ya da ok tuşlarıyla gezinin. Çizgilerini sabitlemek için tıklayın ya da Enter’a basın.",
    "线把每个查询（左）与它看得最多的键相连，线越明显，权重越大。指向一个词元，或用方向键移动，可看它的权重；单击或按回车键可固定它的线。",
  ],
  "view-find": ["Find a token", "Parça ara", "查找词元"],
  "view-range": ["{}–{} of {}", "{}–{} / {}", "{}–{}，共 {}"],
  "view-found": ["Found: {}", "Bulunan: {}", "找到：{}"],
  "view-element": ["batch element {}", "yığının {}. öğesi", "批次元素 {}"],
  "view-several": ["Several heads", "Birkaç başlık", "多个头"],
  "view-mean": ["Mean of both directions", "İki yönün ortalaması", "双向平均"],
  "view-says": ["Layer {}, head {} looks {} (score {}).", "Katman {}, başlık {} bakıyor: {} (puan {}).", "第 {} 层头 {}看{}（得分 {}）。"],
  "view-unclear": [
    "Layer {}, head {} does none of the things that are measured here; most of all it looks {} (score {}).",
    "Katman {}, başlık {} burada ölçülenlerin hiçbirini belirgin yapmıyor; en çok bakıyor: {} (puan {}).",
    "第 {} 层头 {}不属于这里衡量的任何一类；最多看{}（得分 {}）。",
  ],
  "view-nothing": ["No head has a clear pattern.", "Hiçbir başlıkta belirgin bir örüntü yok.", "没有哪个头有明显的模式。"],
  "view-layer": ["Layer {}", "Katman {}", "第 {} 层"],
  "view-order": ["Order", "Sıra", "排序"],
  "view-by-layer": ["by layer", "katmana göre", "按层"],
  "looks-previous": ["at the token before", "önceki parçaya", "前一个词元"],
  "looks-next": ["at the token behind", "sonraki parçaya", "后一个词元"],
  "looks-itself": ["at itself", "kendisine", "自身"],
  "looks-first": ["at the first token", "ilk parçaya", "第一个词元"],
  "looks-same": ["at the same token elsewhere", "aynı parçanın başka yerdekine", "别处的相同词元"],
  "looks-induction": ["at what followed the same token before", "aynı parçanın ardından daha önce gelene", "相同词元先前之后的那个"],
  "looks-separator": ["at separators", "ayırıcılara", "分隔符"],
  "looks-evenly": ["at everything evenly", "hepsine eşit", "全部（均匀）"],
  "looks-information": ["by how much it tells queries apart", "sorguları ne kadar ayırdığına göre", "按它区分查询的程度"],
  save: ["Save", "Kaydet", "保存"],
  "save-table": ["Table (CSV)", "Tablo (CSV)", "表格 (CSV)"],
  "view-all": ["All heads", "Bütün başlıklar", "全部头"],
  "view-special": ["Special tokens", "Özel parçalar", "特殊词元"],
  "view-model": ["All layers and heads", "Bütün katmanlar ve başlıklar", "全部层与头"],
  "view-model-help": [
    "Each map has queries from top to bottom and keys from left to right. In long texts a cell shows the largest weight of several pairs. The sign below a map is the head’s pattern, and the bar is its score. Click a map to see its lines.",
    "Her haritada sorgular yukarıdan aşağıya, anahtarlar soldan sağadır; uzun metinlerde bir hücre ağırlıklarının en büyüğüdür. Haritanın altındaki işaret başlığın örüntüsü, çubuk puanıdır. Çizgilerini görmek için bir haritaya tıklayın.",
    "每幅图自上而下为查询，自左而右为键；长文本中一格取其中最大的权重。图下的符号是该头的模式，色条是其得分。单击一幅图可看它的线。",
  ],
  "view-head": ["Layer {}, head {}", "Katman {}, başlık {}", "第 {} 层，头 {}"],
  "view-pair": ["One query and key", "Bir sorgu ve bir anahtar", "一个查询与一个键"],
  "view-pair-help": [
    "Choose a query and a key by number here, or by a click above, to see the weight of the pair in every head. In long texts the page knows only the largest weights of each query, and an upper bound of the other weights.",
    "Burada numarayla ya da yukarıda tıklayarak bir sorgu ve bir anahtar seçin; çiftin her başlıktaki ağırlığını görün. Uzun metinlerde bir sorgunun yalnız en büyük ağırlıkları bilinir; ötekilerin yalnız neyin altında olduğu.",
    "在此按编号或在上方单击，选择一个查询与一个键，查看该对在每个头中的权重。长文本中只知道一个查询最大的几个权重，其余只知道上限。",
  ],
  "view-query": ["Query", "Sorgu", "查询"],
  "view-key": ["Key", "Anahtar", "键"],
  "heads-first": ["the first {} of {} heads", "{1} başlığın ilk {0} tanesi", "共 {1} 个头中的前 {0} 个"],
  "batch-first": ["the first of a batch of {}", "{} örnekli yığının ilki", "批次共 {} 个，此为第一个"],
  pooled: ["{} cells for {} keys, each the largest of its weights", "{1} anahtar için {0} hücre, her biri ağırlıklarının en büyüğü", "{1} 个键合为 {0} 格，每格取其中最大的权重"],
  head: ["Head {}", "Başlık {}", "头 {}"],
  heads: ["Heads", "Başlıklar", "头"],
  layers: ["Layers", "Katmanlar", "层"],
  queries: ["Queries", "Sorgular", "查询"],
  keys: ["Keys", "Anahtarlar", "键"],
  // The playground
  "regression": ["Attention is kernel regression", "Dikkat, çekirdek bağlanımıdır", "注意力就是核回归"],
  "regression-help": [
    "A query on the line looks at the points nearby; their weighted average is the prediction. Drag the points, the query and the bandwidth.",
    "Doğru üzerindeki sorgu yakındaki noktalara bakar; ağırlıklı ortalamaları tahmindir. Noktaları, sorguyu ve bant genişliğini sürükleyin.",
    "直线上的查询看向附近的点，它们的加权平均就是预测。可拖动各点、查询和带宽。",
  ],
  kernel: ["Kernel", "Çekirdek", "核"],
  gaussian: ["Gaussian", "Gauss", "高斯"],
  epanechnikov: ["Epanechnikov", "Epanechnikov", "Epanechnikov"],
  triangular: ["triangular", "üçgen", "三角"],
  boxcar: ["boxcar", "kutu", "矩形"],
  bandwidth: ["Bandwidth σ", "Bant genişliği σ", "带宽 σ"],
  "query-at": ["Query x", "Sorgu x", "查询 x"],
  prediction: ["Prediction", "Tahmin", "预测"],
  "out-of-reach": ["no point within reach", "erimde nokta yok", "范围内没有点"],
  point: ["Point {}", "Nokta {}", "点 {}"],
  "scores-title": ["Three ways to compare", "Üç karşılaştırma yolu", "三种比较方式"],
  "scores-help": [
    "Keys and queries are points in the plane; each row of a matrix is one query’s softmax over the keys. Drag a point, or move it with the arrow keys.",
    "Anahtarlar ve sorgular düzlemde noktalardır; matrisin her satırı bir sorgunun anahtarlar üzerindeki softmax’ıdır. Bir noktayı sürükleyin ya da ok tuşlarıyla oynatın.",
    "键和查询是平面上的点；矩阵的每一行是一个查询对各键的 softmax。可拖动点，或用方向键移动。",
  ],
  dot: ["Dot product", "İç çarpım", "点积"],
  additive: ["Additive", "Toplamsal", "加性"],
  "gaussian-score": ["Gaussian", "Gauss", "高斯"],
  key: ["Key {}", "Anahtar {}", "键 {}"],
  "query-n": ["Query {}", "Sorgu {}", "查询 {}"],
  "softmax-title": ["Softmax that knows where a sentence ends", "Cümlenin nerede bittiğini bilen softmax", "知道句子在哪里结束的 softmax"],
  "softmax-help": [
    "Each row is a sentence; behind its length there is padding, which gets no weight at all. Drag the lengths: with 0, all weights are 0.",
    "Her satır bir cümledir; uzunluğundan sonrası dolgudur ve hiç ağırlık almaz. Uzunlukları sürükleyin: 0 ise bütün ağırlıklar 0’dır.",
    "每一行是一个句子，其长度之后是填充，不会得到任何权重。拖动长度：为 0 时所有权重都是 0。",
  ],
  "length-of": ["Length of sentence {}", "{}. cümlenin uzunluğu", "第 {} 句的长度"],
  sentence: ["Sentence {}", "Cümle {}", "第 {} 句"],
  "scores-before": ["Scores", "Puanlar", "得分"],
  "weights-after": ["Weights", "Ağırlıklar", "权重"],
  padding: ["padding", "dolgu", "填充"],
  shuffle: ["Other numbers", "Başka sayılar", "换一组数"],
  // Refusals
  "too-long": [
    "That text has {} characters; at most 10,000 can be translated at once. Split it.",
    "Bu metin {} karakter; bir kerede en çok 10.000 karakter çevrilebilir. Bölün.",
    "文本有 {} 个字符，一次最多翻译 10,000 个，请拆分。",
  ],
  "half-character": [
    "That text has half a character in it (a lone surrogate). Type or paste it again.",
    "Bu metinde yarım bir karakter var. Yeniden yazın ya da yapıştırın.",
    "文本中含有半个字符（孤立代理项），请重新输入或粘贴。",
  ],
  "no-model": [
    "This page carries no model that it could run: {}. Export it again. The playground works.",
    "Bu sayfada çalıştırılabilecek bir model yok: {}. Yeniden dışa aktarın. Deneme alanı çalışır.",
    "本页面没有可以运行的模型：{}。请重新导出；实验台仍可使用。",
  ],
  damaged: [
    "The model in this file is damaged ({}). Copy or export the file again. The playground works.",
    "Bu dosyadaki model bozuk ({}). Dosyayı yeniden kopyalayın ya da dışa aktarın. Deneme alanı çalışır.",
    "此文件中的模型已损坏（{}）。请重新复制或导出该文件；实验台仍可使用。",
  ],
  "old-browser": [
    "This browser is too old to unpack the model ({}). Use one of mid-2023 or later.",
    "Bu tarayıcı modeli açmak için çok eski ({}). 2023 ortasının ya da sonrasının birini kullanın.",
    "浏览器版本过旧，无法解开模型（{}）。请使用 2023 年中或更新的版本。",
  ],
  "not-numbers": [
    "The model’s scores are not numbers: its weights are damaged, or its training diverged.",
    "Modelin puanları sayı değil: ağırlıkları bozuk ya da eğitimi ıraksamış.",
    "模型的得分不是数：权重已损坏，或训练发散。",
  ],
  "weight-number": ["A weight has to be a number.", "Ağırlık bir sayı olmalı.", "权重必须是数。"],
  "weight-range": [
    "A weight is from 0 to 100 %.", "Ağırlık %0 ile %100 arasındadır.", "权重在 0 到 100 % 之间。",
  ],
  "weight-sum": [
    "The pinned weights of a step add up to at most 100 %. Let go of another one first.",
    "Bir adımın sabitlenen ağırlıklarının toplamı en çok %100’dür. Önce bir başkasını serbest bırakın.",
    "一步中固定的权重之和最多为 100 %。请先取消固定另一个。",
  ],
  "weight-place": [
    "There is no word {} in this sentence that could have a weight.",
    "Bu cümlede ağırlık alabilecek {}. sözcük yok.",
    "句子中没有第 {} 个词，无法设置权重。",
  ],
  "step-place": [
    "The change at step {} is beyond the end of the translation.",
    "{}. adımdaki değişiklik çevirinin sonundan sonra.",
    "第 {} 步的改动超出了译文的末尾。",
  ],
  "token-place": [
    "A chosen word is not one that this model can write there ({}).",
    "Seçilen sözcük bu modelin orada yazabileceği bir sözcük değil ({}).",
    "所选的词不是该模型能在此处写出的（{}）。",
  ],
  "tag-unclosed": [
    "{} is not closed. Tags have to nest; write &lt; for a < that begins no tag.",
    "{} kapatılmamış. Etiketler iç içe olmalı; etiket başlatmayan bir < için &lt; yazın.",
    "{} 没有闭合。标签必须正确嵌套；不是标签开头的 < 请写成 &lt;。",
  ],
  "tag-stray": [
    "{} stands where no tag is open. Tags have to nest; write &lt; for a < that begins no tag.",
    "{} yazılan yerde açık bir etiket yok. Etiketler iç içe olmalı; etiket başlatmayan bir < için &lt; yazın.",
    "{} 出现之处没有尚未闭合的标签。标签必须正确嵌套；不是标签开头的 < 请写成 &lt;。",
  ],
  "tag-crossed": [
    "{} stands where {} is open. Tags have to nest; write &lt; for a < that begins no tag.",
    "{} yazılan yerde {} açık. Etiketler iç içe olmalı; etiket başlatmayan bir < için &lt; yazın.",
    "{} 出现时 {} 尚未闭合。标签必须正确嵌套；不是标签开头的 < 请写成 &lt;。",
  ],
  "tag-deep": [
    "{} stands inside of 99 other tags. Put fewer in each other.",
    "{} başka 99 etiketin içinde. Daha azını iç içe koyun.",
    "{} 已在 99 层标签之内，请减少嵌套。",
  ],
  "tag-unattended": [
    "This model has no attention, so nobody can say where a word comes from, nor where its tags go. Take the tags out.",
    "Bu modelde dikkat yok; bir sözcüğün nereden geldiği, etiketlerinin de nereye gideceği bilinemez. Etiketleri çıkarın.",
    "该模型没有注意力，无从知道每个词来自哪里，也就无法放置标签。请去掉标签。",
  ],
} satisfies Record<string, [string, string, string]>;

export type Phrase = keyof typeof TABLE;

const COLUMNS: Record<Language, number> = { en: 0, tr: 1, zh: 2 };

let language: Language = "en";

export function speak(wanted: Language): void {
  language = wanted;
}

export const spoken = (): Language => language;

/** Two languages: codes such as "en" in the reader's words (English → French), names as they are. */
export function pair([source, target]: readonly [string, string]): string {
  const names = new Intl.DisplayNames([language], { type: "language" });
  const name = (given: string): string | undefined => (/^[a-z]{2,3}(-[A-Za-z]{2,4})?$/.test(given) ? names.of(given) : given);
  return `${name(source)} → ${name(target)}`;
}

/** A phrase in the reader's language with its placeholders filled. */
export function t(phrase: Phrase, ...values: (string | number)[]): string {
  let at = 0;
  return TABLE[phrase][COLUMNS[language]]!.replace(/\{(\d?)\}/g, (_, place: string) => String(values[place ? Number(place) : at++] ?? ""));
}

/** A number with fixed decimals, in the reader's language. */
export const number = (value: number, digits = 2): string =>
  value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const percent = (share: number, digits = 0): string =>
  share.toLocaleString(language, { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits });

/** A number to four significant digits. */
export const precise = (value: number): string =>
  value !== 0 && Math.abs(value) < 1e-4
    ? value.toLocaleString(language, { notation: "scientific", maximumSignificantDigits: 4 })
    : value.toLocaleString(language, { maximumSignificantDigits: 4 });

/** A number short enough for a map's cell. */
export const brief = (value: number): string =>
  value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 100)
    ? value.toLocaleString(language, { maximumFractionDigits: Math.abs(value) < 1 ? 3 : 1 })
    : value.toExponential(0);

/** The first of the browser's languages that the page has, or English. */
export function preferred(languages: readonly string[]): Language {
  for (const each of languages) {
    const own = each.slice(0, 2).toLowerCase();
    if (own in LANGUAGES) return own as Language;
  }
  return "en";
}
