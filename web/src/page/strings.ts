/** The phrases of the page in English, Turkish and Chinese. */

export const LANGUAGES = { en: "English", tr: "Türkçe", zh: "中文" } as const;
export type Language = keyof typeof LANGUAGES;

/** The phrases in English, Turkish and Chinese. `{}` is a placeholder for the next value, and `{1}` for the second value. */
const TABLE = {
  translate: ["Translator", "Çevirmen", "翻译"],
  sentences: ["Sentences", "Cümleler", "句子"],
  calls: ["Calls", "Çağrılar", "调用"],
  comparison: ["Comparison", "Karşılaştırma", "对比"],
  epoch: ["epoch {}", "{}. dönem", "第 {} 轮"],
  "different-translations": ["different translations: {} of {}", "farklı çeviriler: {} / {}", "不同的译文：{} / {}"],
  "differences-help": [
    "Words that differ are marked. Point at a word to see its attention weights.",
    "Farklı sözcükler işaretlidir. Dikkat ağırlıklarını görmek için bir sözcüğün üzerine gelin.",
    "不同的词已标出。指向一个词可查看它的注意力权重。",
  ],
  "epochs-help": [
    "Move the slider to another epoch, or press the arrow keys. Words that differ are marked. Point at a word to see its attention weights.",
    "Sürgüyü ya da ok tuşlarını kullanarak başka bir döneme geçin. Farklı sözcükler işaretlidir. Dikkat ağırlıklarını görmek için bir sözcüğün üzerine gelin.",
    "拖动滑块或按方向键切换轮次。不同的词已标出。指向一个词可查看它的注意力权重。",
  ],
  playground: ["Playground", "Deneme alanı", "实验台"],
  language: ["Language", "Dil", "语言"],
  theme: ["Appearance", "Görünüm", "外观"],
  "theme-auto": ["System theme", "Sistem teması", "跟随系统"],
  "theme-light": ["Light", "Açık", "浅色"],
  "theme-dark": ["Dark", "Koyu", "深色"],
  source: ["Your text", "Metniniz", "原文"],
  placeholder: ["Type a sentence …", "Bir cümle yazın …", "输入一个句子……"],
  target: ["Translation", "Çeviri", "译文"],
  examples: ["Try", "Deneyin", "试一试"],
  search: ["Search method", "Arama yöntemi", "搜索方式"],
  greedy: ["greedy (the likeliest word at each step)", "açgözlü (her adımda en olası sözcük)", "贪心（每步取最可能的词）"],
  beam: ["beam of {}", "ışın araması: {}", "束搜索：{}"],
  alternatives: ["Translations shown", "Gösterilen çeviriler", "显示的译文"],
  "best-translation": ["the best", "en iyisini", "最佳译文"],
  "best-translations": ["the {} best", "en iyi {} tanesini", "前 {} 个"],
  score: ["log-probability", "log-olasılık", "对数概率"],
  "confidence-per-word": ["confidence per word: {}", "sözcük başına güven: {}", "每词置信度：{}"],
  subwords: ["parts of words", "sözcük parçaları", "词的片段"],
  "unknown words": ["not learnt:", "öğrenilmedi:", "没有学过："],
  "untrained-word": [
    "No training sentence contains this word, so its translation is a guess",
    "Eğitim cümlelerinin hiçbirinde bu sözcük yok; çevirisi bir tahmindir",
    "训练句子中没有这个词，它的译法只是猜测",
  ],
  "confidence-formula": ["confidence = e^(log-probability ÷ (5 + tokens))", "güven = e^(log-olasılık ÷ (5 + parça))", "置信度 = e^(对数概率 ÷ (5 + 词元数))"],
  html: ["HTML tags", "HTML etiketleri", "HTML 标签"],
  "more-options": ["More", "Daha fazla", "更多"],
  "more-words": ["Less likely words", "Daha az olası sözcükler", "更不可能的词"],
  "file-formats": ["Table, SVG, PNG, PDF", "Tablo, SVG, PNG, PDF", "表格、SVG、PNG、PDF"],
  "search-limit": ["this search finds at most {}", "bu arama en çok {} tane bulur", "此搜索最多给出 {} 个"],
  "search-time": ["{} ms", "{} ms", "{} 毫秒"],
  cut: ["incomplete: reached the length limit", "eksik: uzunluk sınırına ulaştı", "不完整：已达长度上限"],
  repeated: ["incomplete: the model repeated itself", "eksik: model kendini yineledi", "不完整：模型重复了自己的输出"],
  lead: [
    "A small neural network{} translates in your browser. For each word of the translation, the page shows the attention weights of the source words. You can change them.",
    "Küçük bir sinir ağı{} tarayıcınızda çevirir. Sayfa, çevirinin her sözcüğü için kaynak sözcüklerin dikkat ağırlıklarını gösterir. Bunları değiştirebilirsiniz.",
    "一个小型神经网络{}在您的浏览器中翻译。页面为译文的每个词显示源词的注意力权重，您可以改动它们。",
  ],
  introduction: [
    "Type a sentence above, or try an example. The page then shows the attention of each word of the translation.",
    "Yukarıya bir cümle yazın ya da örneklerden birini deneyin. Sayfa, çevirinin her sözcüğünün dikkatini burada gösterir.",
    "请在上方输入一个句子，或试试例句。这里会显示译文每个词的注意力。",
  ],
  "no-text": ["Nothing to translate yet.", "Henüz çevrilecek bir şey yok.", "还没有可翻译的内容。"],
  loading: ["Unpacking the model …", "Model açılıyor …", "正在载入模型……"],
  links: ["Where each word looks", "Her sözcük nereye bakıyor", "每个词看向哪里"],
  "links-help": [
    "Point at a word, or move from word to word with the arrow keys. Click, or press Enter, to open its step.",
    "Bir sözcüğün üzerine gelin ya da ok tuşlarıyla gezinin. Adımını açmak için tıklayın ya da Enter’a basın.",
    "指向一个词，或用方向键逐词移动；单击或按回车键展开该步。",
  ],
  map: ["All weights", "Bütün ağırlıklar", "全部权重"],
  "map-help": [
    "Rows are the words of the translation, columns the words of the source. Arrow keys move from cell to cell.",
    "Satırlar çevirinin, sütunlar kaynağın sözcükleridir. Ok tuşları hücreden hücreye geçer.",
    "行是译文的词，列是原文的词；方向键在格子间移动。",
  ],
  table: ["Table", "Tablo", "表格"],
  picture: ["Picture", "Resim", "图"],
  "too-long-for-links": [
    "{} × {} words are too many for lines. The map shows all weights.",
    "{} × {} sözcük, çizgiler için çok fazla. Harita bütün ağırlıkları gösterir.",
    "{} × {} 个词，太多，无法连线。热图中有全部权重。",
  ],
  "tiles-help": [
    "Drag to move. Turn the wheel, pinch, or press + and − to zoom. Home shows all. Arrow keys move from cell to cell. If cells are small, each point has the colour of its largest weight.",
    "Kaydırmak için sürükleyin. Yakınlaştırmak için tekerleği çevirin, iki parmakla açın ya da + ve − tuşlarına basın. Home tümünü gösterir. Ok tuşları hücreden hücreye geçer. Hücreler küçükse her nokta içindeki en büyük ağırlığın rengindedir.",
    "拖动可平移；滚轮、双指或 + − 键可缩放；Home 键显示全部；方向键在格子间移动。格子很小时，每个点取其中最大权重的颜色。",
  ],
  "source-axis": ["Source", "Kaynak", "原文"],
  "zoom-in": ["Zoom in", "Yakınlaştır", "放大"],
  "zoom-out": ["Zoom out", "Uzaklaştır", "缩小"],
  "show-all": ["Show all", "Tümünü göster", "显示全部"],
  "save-view": ["Visible part as PNG", "Görünen bölüm, PNG olarak", "当前可见部分，存为 PNG"],
  "visible-table": ["Table of the visible part", "Görünen bölümün tablosu", "当前可见部分的表格"],
  "upper-bound": ["at most {}", "en çok {}", "最大 {}"],
  "no-number": ["no number", "sayı yok", "无数值"],
  "no-attention": [
    "This model has no attention. It reads the complete sentence as one vector.",
    "Bu modelde dikkat yok. Cümlenin tümünü tek bir vektör olarak okur.",
    "该模型没有注意力，它把整个句子读作一个向量。",
  ],
  "attends-to": ["“{}” looked at “{}”: {}", "“{}”, “{}” sözcüğüne baktı: {}", "“{}”看向“{}”：{}"],
  "attends-most-to": ["“{}” looked at: {}", "“{}” şuralara baktı: {}", "“{}”看向：{}"],
  "attended-by": ["“{}” was looked at by: {}", "“{}” sözcüğüne bakanlar: {}", "看向“{}”的词：{}"],
  "token-label": ["{}, looks most at {}, {}", "{}, en çok {} sözcüğüne bakıyor, {}", "{}，最关注{}，{}"],
  "source-label": ["{}, a source word", "{}, kaynak sözcük", "{}，源词"],
  step: ["Step {} of {}", "Adım {} / {}", "第 {} 步，共 {} 步"],
  end: ["end", "son", "结束"],
  "previous-step": ["Previous step", "Önceki adım", "上一步"],
  "next-step": ["Next step", "Sonraki adım", "下一步"],
  "attention-weights": ["Attention weights", "Dikkat ağırlıkları", "注意力权重"],
  "attention-weights-help": [
    "Drag or type a weight to pin it. The other words share the rest, and the page translates the sentence again from this step.",
    "Sabitlemek için bir ağırlığı sürükleyin ya da yazın. Kalanı öteki sözcükler paylaşır; sayfa cümleyi bu adımdan başlayarak yeniden çevirir.",
    "拖动或输入一个权重即可固定它。其余词分享剩下的权重，页面从这一步起重新翻译句子。",
  ],
  word: ["word", "sözcük", "词"],
  "score-column": ["score", "skor", "分数"],
  weight: ["weight", "ağırlık", "权重"],
  "weight-of": ["Weight of {}", "{} ağırlığı", "“{}”的权重"],
  "percent-of": ["Weight of {}, in percent", "{} ağırlığı, yüzde", "“{}”的权重（百分比）"],
  unpin: ["Unpin {}", "{} sabitlemesini kaldır", "取消固定“{}”"],
  likely: ["Likely next words", "Olası sonraki sözcükler", "可能的下一个词"],
  "likely-help": [
    "Choose another word. The page keeps the words before it and translates the rest again.",
    "Başka bir sözcük seçin. Sayfa önceki sözcükleri korur, gerisini yeniden çevirir.",
    "另选一个词。页面保留前面的词，重新翻译后面的部分。",
  ],
  "step-vectors": ["More: the numbers of this step", "Daha fazla: bu adımın sayıları", "更多：这一步的数值"],
  "step-vectors-help": [
    "Each strip is a vector, from its first number to its last. Teal is above 0, orange below.",
    "Her şerit bir vektördür, ilk sayısından sonuncusuna. Camgöbeği 0’ın üstü, turuncu altıdır.",
    "每条色带是一个向量，从第一个数到最后一个数：青色大于 0，橙色小于 0。",
  ],
  contributions: ["Direct contribution of each source word to the score of “{}”", "Her kaynak sözcüğün “{}” skoruna doğrudan katkısı", "每个源词对“{}”分数的直接贡献"],
  contribution: ["contribution", "katkı", "贡献"],
  query: ["Query", "Sorgu", "查询"],
  context: ["Context: the weighted mean", "Bağlam: ağırlıklı ortalama", "上下文：加权平均"],
  reset: ["Reset gate", "Sıfırlama kapısı", "重置门"],
  update: ["Update gate: the kept share of the state", "Güncelleme kapısı: durumun korunan payı", "更新门：状态的保留比例"],
  candidate: ["Candidate state", "Aday durum", "候选状态"],
  input: ["Input gate", "Giriş kapısı", "输入门"],
  forget: ["Forget gate", "Unutma kapısı", "遗忘门"],
  output: ["Output gate", "Çıkış kapısı", "输出门"],
  state: ["State after the step", "Adımdan sonraki durum", "这一步之后的状态"],
  mean: ["mean {}", "ortalama {}", "均值 {}"],
  vector: ["vector", "vektör", "向量"],
  minimum: ["least", "en küçük", "最小"],
  "mean-value": ["mean", "ortalama", "均值"],
  maximum: ["most", "en büyük", "最大"],
  changes: ["Changed by you", "Sizin değiştirdikleriniz", "您的改动"],
  "change-pin": ["step {}: {} at {}", "adım {}: {} = {}", "第 {} 步：{} = {}"],
  "change-word": ["step {}: “{}” chosen", "adım {}: “{}” seçildi", "第 {} 步：选了“{}”"],
  "kept-words": ["held: {}", "sabit tutulan: {}", "保持不变：{}"],
  "original-translation": ["without them: {}", "bunlar olmadan: {}", "未改动时：{}"],
  undo: ["Undo", "Geri al", "撤销"],
  redo: ["Redo", "Yinele", "重做"],
  clear: ["Undo all", "Tümünü geri al", "全部还原"],
  "save-json": ["Everything as JSON", "Hepsi JSON olarak", "全部导出为 JSON"],
  link: ["Copy a link", "Bağlantıyı kopyala", "复制链接"],
  "copy-address": ["Copy this address", "Bu adresi kopyalayın", "请复制此地址"],
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
    "Point at a word, or move with the arrow keys, to see its attention weights. Click, or press Enter, to keep the word selected. Esc deselects it.",
    "Dikkat ağırlıklarını görmek için bir sözcüğün üzerine gelin ya da ok tuşlarıyla gezinin. Seçili tutmak için tıklayın ya da Enter’a basın. Esc seçimi kaldırır.",
    "指向一个词，或用方向键移动，即可看到它的注意力权重；单击或按回车键将其固定，按 Esc 取消。",
  ],
  find: ["Find sentences", "Cümlelerde ara", "查找句子"],
  "sentence-count": ["Sentences: {}", "Cümle sayısı: {}", "句子数：{}"],
  "matching-sentence-count": ["Sentences: {} of {}", "Cümle sayısı: {} / {}", "句子数：{} / {}"],
  "no-matching-sentence": ["No sentence contains these words.", "Bu sözcükleri içeren cümle yok.", "没有包含这些词的句子。"],
  reference: ["Reference", "Referans", "参考译文"],
  "open-in-translator": ["Open in the translator", "Çevirmende aç", "在翻译中打开"],
  // Calls of a model's attention
  "calls-count": ["Attention calls: {}", "Dikkat çağrısı: {}", "注意力调用：{}"],
  "first-calls": ["Attention calls: {} (the page shows the first {})", "Dikkat çağrısı: {} (sayfa ilk {} tanesini gösterir)", "注意力调用：{}（显示前 {} 个）"],
  "all-calls": ["All calls", "Bütün çağrılar", "全部调用"],
  recorded: ["Recorded: {}", "Kaydedilen: {}", "已记录：{}"],
  "call-overview": ["Pooled map", "Havuzlanmış harita", "汇聚后的热图"],
  "call-rows": ["Selected queries, in the requested order", "Seçilen sorgular, istenen sırayla", "所选的查询，按请求的顺序"],
  "call-sums": ["Total weight of each key", "Her anahtarın toplam ağırlığı", "每个键的总权重"],
  "call-entropy": [
    "Mean entropy in nats by layer and head: 0 if each query attends to one key",
    "Katmana ve kafaya göre ortalama entropi (nat): her sorgu tek bir anahtara bakıyorsa 0",
    "各层各头的平均熵（奈特）：每个查询只关注一个键时为 0",
  ],
  "view-kind": ["Attention", "Dikkat", "注意力"],
  "view-self": ["Within the text", "Metnin içinde", "文本之内"],
  "view-encoder": ["Within the source", "Kaynağın içinde", "源文本之内"],
  "view-cross": ["From text to source", "Metinden kaynağa", "从文本到源文本"],
  "view-heads": ["Heads of a layer", "Bir katmanın kafaları", "一层的各个头"],
  "view-heads-help": [
    "Lines connect each query (left) with the keys of its largest weights. A stronger line is a larger weight. Point at a token, or move with the arrow keys, to see its weights. Click a token, or press Enter, to keep its lines.",
    "Çizgiler her sorguyu (solda) en büyük ağırlıklı anahtarlarına bağlar. Daha belirgin çizgi, daha büyük ağırlıktır. Ağırlıklarını görmek için bir parçanın üzerine gelin ya da ok tuşlarıyla gezinin. Çizgilerini sabitlemek için tıklayın ya da Enter’a basın.",
    "线把每个查询（左）与权重最大的键相连，线越明显，权重越大。指向一个词元，或用方向键移动，可看它的权重；单击或按回车键可固定它的线。",
  ],
  "view-find": ["Find a token", "Parça ara", "查找词元"],
  "view-range": ["{}–{} of {}", "{}–{} / {}", "{}–{}，共 {}"],
  "view-match-count": ["Found: {}", "Bulunan: {}", "找到：{}"],
  "view-element": ["batch element {}", "yığının {}. öğesi", "批次元素 {}"],
  "view-several-heads": ["Several heads", "Birkaç kafa", "多个头"],
  "view-mean": ["Mean of both directions", "İki yönün ortalaması", "双向平均"],
  "view-pattern": ["Layer {}, head {} looks {} (score {}).", "Katman {}, kafa {} bakıyor: {} (skor {}).", "第 {} 层头 {}看{}（分数 {}）。"],
  "view-unclear": [
    "Layer {}, head {} has no clear pattern. The best match: it looks {} (score {}).",
    "Katman {}, kafa {} belirgin bir örüntü göstermiyor. En yakını: bakıyor {} (skor {}).",
    "第 {} 层头 {}没有明显的模式。最接近的是：看{}（分数 {}）。",
  ],
  "view-change": ["Layer {}, head {}: its weights changed by {} (total variation).", "Katman {}, kafa {}: ağırlıkları {} değişti (toplam değişim uzaklığı).", "第 {} 层头 {}：权重变化了 {}（全变差）。"],
  "view-effect": ["If layer {}, head {} is cut, the result changes by {}.", "Katman {}, kafa {} kesilirse sonuç {} değişir.", "若切除第 {} 层头 {}，结果变化 {}。"],
  "view-estimate": [
    "If layer {}, head {} is cut, the result changes by about {} (an estimate).",
    "Katman {}, kafa {} kesilirse sonuç yaklaşık {} değişir (tahmin).",
    "若切除第 {} 层头 {}，结果约变化 {}（估计值）。",
  ],
  "view-increase": ["more weight in the first run", "ilk çalıştırmada daha çok ağırlık", "第一次运行中权重更大"],
  "view-decrease": ["less weight in the first run", "ilk çalıştırmada daha az ağırlık", "第一次运行中权重更小"],
  "view-positive-effect": ["the result rises if the head is cut", "kafa kesilirse sonuç artar", "切除该头后结果上升"],
  "view-negative-effect": ["the result falls if the head is cut", "kafa kesilirse sonuç azalır", "切除该头后结果下降"],
  "view-no-patterns": ["No head has a clear pattern.", "Hiçbir kafada belirgin bir örüntü yok.", "没有哪个头有明显的模式。"],
  "view-layer": ["Layer {}", "Katman {}", "第 {} 层"],
  "view-order": ["Order", "Sıra", "排序"],
  "view-by-layer": ["by layer", "katmana göre", "按层"],
  "looks-previous": ["at the previous token", "önceki parçaya", "前一个词元"],
  "looks-next": ["at the next token", "sonraki parçaya", "后一个词元"],
  "looks-itself": ["at itself", "kendisine", "自身"],
  "looks-first": ["at the first token", "ilk parçaya", "第一个词元"],
  "looks-same": ["at the same token elsewhere", "aynı parçanın başka yerdekine", "别处的相同词元"],
  "looks-induction": ["at the token after an earlier copy", "önceki bir kopyanın ardından gelen parçaya", "先前相同词元之后的词元"],
  "looks-separator": ["at separators", "ayırıcılara", "分隔符"],
  "looks-nearby": ["at nearby patches", "yakındaki yamalara", "邻近的图块"],
  "looks-row": ["at patches in the same row", "aynı satırdaki yamalara", "同一行的图块"],
  "looks-column": ["at patches in the same column", "aynı sütundaki yamalara", "同一列的图块"],
  "looks-class": ["at the class token", "sınıf parçasına", "类别词元"],
  "looks-registers": ["at register tokens", "yazmaç parçalarına", "寄存器词元"],
  "looks-evenly": ["evenly at all tokens", "bütün parçalara eşit", "全部词元（均匀）"],
  "looks-information": ["by how much its weights differ between queries", "ağırlıkları sorgular arasında ne kadar değişiyor", "按权重在查询之间的差异"],
  "looks-change": ["by the change of their weights", "ağırlıklarının değişimine göre", "按权重的变化"],
  "looks-effect": ["by their effect on the result", "sonuca etkilerine göre", "按对结果的影响"],
  "looks-estimate": ["by their estimated effect on the result", "sonuca tahmini etkilerine göre", "按对结果的估计影响"],
  save: ["Save", "Kaydet", "保存"],
  "save-table": ["Table (CSV)", "Tablo (CSV)", "表格 (CSV)"],
  "all-heads": ["All heads", "Bütün kafalar", "全部头"],
  "view-special": ["Special tokens", "Özel parçalar", "特殊词元"],
  "view-model": ["All layers and heads", "Bütün katmanlar ve kafalar", "全部层与头"],
  "view-model-help": [
    "Each map has queries from top to bottom and keys from left to right. In long texts a cell shows the largest weight of several pairs. The sign below a map is the head’s pattern, and the bar is its score. Click a map to see its lines.",
    "Her haritada sorgular yukarıdan aşağıya, anahtarlar soldan sağadır. Uzun metinlerde bir hücre birkaç çiftin en büyük ağırlığını gösterir. Haritanın altındaki işaret kafanın örüntüsü, çubuk skorudur. Çizgilerini görmek için bir haritaya tıklayın.",
    "每幅图自上而下为查询，自左而右为键；长文本中一格取多对中最大的权重。图下的符号是该头的模式，色条是其分数。单击一幅图可看它的线。",
  ],
  "view-lead-help": [
    "Each map has queries from top to bottom and keys from left to right. Below it are the layer, the head and the number that ranks the heads. Click a map to see its lines.",
    "Her haritada sorgular yukarıdan aşağıya, anahtarlar soldan sağadır. Altında katman, kafa ve kafaların sıralandığı sayı vardır. Çizgilerini görmek için bir haritaya tıklayın.",
    "每幅图自上而下为查询，自左而右为键；图下是层、头以及各头排序所依据的数。单击一幅图可看它的线。",
  ],
  // Attention between positions of images and time series
  "position-help": [
    "The brightest patches have the largest weights. White lines outline the largest 5%. Point at a patch or a word, or move with the arrow keys, to see its weights. Click, or press Enter, to keep it.",
    "En parlak yamaların ağırlığı en büyüktür. Beyaz çizgiler en büyük %5’i çevreler. Ağırlıklarını görmek için bir yamanın ya da sözcüğün üzerine gelin veya ok tuşlarıyla gezinin. Sabitlemek için tıklayın ya da Enter’a basın.",
    "最亮的图块权重最大，白线圈出最大的 5%。指向一个图块或词，或用方向键移动，可看它的权重；单击或按回车键可固定它。",
  ],
  "position-times-help": [
    "A stronger colour and a higher bar are a larger weight. Point at a time, or move with the arrow keys, to see its weights. Click, or press Enter, to keep it.",
    "Daha koyu renk ve daha yüksek çubuk, daha büyük ağırlıktır. Ağırlıklarını görmek için bir zamanın üzerine gelin ya da ok tuşlarıyla gezinin. Sabitlemek için tıklayın ya da Enter’a basın.",
    "颜色越深、条越高，权重越大。指向一个时刻，或用方向键移动，可看它的权重；单击或按回车键可固定它。",
  ],
  "position-model-help": [
    "Each map shows the weights of the selected query in one head, on its scale. The sign below a map is the head’s pattern, and the bar is its score. Click a map to see it on the image.",
    "Her harita, seçili sorgunun bir kafadaki ağırlıklarını kendi ölçeğinde gösterir. Haritanın altındaki işaret kafanın örüntüsü, çubuk skorudur. Görüntü üzerinde görmek için bir haritaya tıklayın.",
    "每幅图按各自的尺度显示所选查询在一个头中的权重。图下的符号是该头的模式，色条是其分数。单击一幅图可在图像上看它。",
  ],
  "position-pair-help": [
    "Choose a query and a key by number here, or by a click above, to see the weight of the pair in every head. On large images it is the mean weight of two blocks of patches.",
    "Çiftin her kafadaki ağırlığını görmek için burada numarayla ya da yukarıda tıklayarak bir sorgu ve bir anahtar seçin. Büyük görüntülerde bu, iki yama öbeğinin ortalama ağırlığıdır.",
    "在此按编号或在上方单击，选择一个查询与一个键，查看该对在每个头中的权重。大图像上为两个图块组的平均权重。",
  ],
  "position-tokens": ["Tokens", "Parçalar", "词元"],
  "position-mean": ["mean of all queries", "bütün sorguların ortalaması", "全部查询的平均"],
  "position-direction": ["Show", "Göster", "显示"],
  "position-patches": ["Patches", "Yamalar", "图块"],
  "position-words": ["Words", "Sözcükler", "词"],
  "position-attends": ["what it looks at", "nereye baktığı", "它看向哪里"],
  "position-attended": ["what looks at it", "kimin ona baktığı", "谁看向它"],
  "position-opacity": ["Opacity of the map", "Haritanın opaklığı", "热图不透明度"],
  "position-contrast": ["Contrast", "Karşıtlık", "对比度"],
  "position-outline": ["Outline the largest 5%", "En büyük %5’i çevrele", "圈出最大的 5%"],
  "position-hide-sinks": ["Hide sinks and rescale the rest", "Kuyuları gizle, kalanı yeniden ölçekle", "隐藏汇并重新缩放其余权重"],
  "position-sinks": [
    "× marks sinks: keys with more than ten times the uniform weight from most queries.",
    "× kuyuları gösterir: çoğu sorgudan eşit ağırlığın on katından fazlasını alan anahtarlar.",
    "× 标记汇：从多数查询得到超过均匀权重十倍的键。",
  ],
  "position-hidden-sinks": [
    "Sinks are hidden ({}), and the other weights are rescaled to 100%.",
    "Kuyular gizli ({}); öteki ağırlıklar %100’e ölçeklendi.",
    "汇已隐藏（{} 个），其余权重已缩放到 100%。",
  ],
  "position-share": ["On the image: {}. On other tokens: {}.", "Görüntüde: {}. Öteki parçalarda: {}.", "图像上：{}。其他词元上：{}。"],
  "position-largest": ["Only the largest weights of each query are known.", "Her sorgunun yalnız en büyük ağırlıkları biliniyor.", "只知道每个查询最大的几个权重。"],
  "position-pooled": ["Each weight is the mean of a block of {} × {0} patches.", "Her ağırlık {} × {0} yamalık bir öbeğin ortalamasıdır.", "每个权重是 {} × {0} 个图块的平均。"],
  "position-legend": ["Colours from {} (dark) to {} (bright)", "Renkler: {} (koyu) – {} (parlak)", "颜色：{}（暗）到 {}（亮）"],
  "position-uniform": ["Uniform weight: {}", "Eşit ağırlık: {}", "均匀权重：{}"],
  "position-equal-weights": ["{} positions with nearly the same weight ({})", "neredeyse eşit ağırlıklı {} konum ({})", "{} 个位置的权重几乎相同（{}）"],
  "position-query-readout": ["{} looks at: {}", "{} şuralara bakıyor: {}", "{}看向：{}"],
  "position-key-readout": ["Looking at {}: {}", "{} için bakanlar: {}", "看向{}的：{}"],
  "position-mean-readout": ["The queries look, on average, at: {}", "Sorguların ortalamada baktığı yerler: {}", "各查询平均看向：{}"],
  "position-cell": ["row {}, column {}", "satır {}, sütun {}", "第 {} 行第 {} 列"],
  "position-time": ["time {}", "zaman {}", "时刻 {}"],
  "position-image-number": ["image {}", "görüntü {}", "图像 {}"],
  "position-image": ["Image with weights", "Ağırlıklı görüntü", "带权重的图像"],
  "position-series": ["Series with weights", "Ağırlıklı dizi", "带权重的序列"],
  "position-original": ["Original, with the part that the model saw", "Özgün görüntü ve modelin gördüğü bölüm", "原图及模型看到的部分"],
  "position-uncropped": ["The image that the model saw", "Modelin gördüğü görüntü", "模型看到的图像"],
  "patches-keys": ["Arrow keys move, Enter keeps", "Ok tuşları gezdirir, Enter sabitler", "方向键移动，回车键固定"],
  "loading-weights": ["Unpacking the weights …", "Ağırlıklar açılıyor …", "正在载入权重……"],
  "view-head": ["Layer {}, head {}", "Katman {}, kafa {}", "第 {} 层，头 {}"],
  "view-pair": ["One query and key", "Bir sorgu ve bir anahtar", "一个查询与一个键"],
  "view-pair-help": [
    "Choose a query and a key by number here, or by a click above, to see the weight of the pair in every head. In long texts the page knows only the largest weights of each query, and an upper bound of the other weights.",
    "Çiftin her kafadaki ağırlığını görmek için burada numarayla ya da yukarıda tıklayarak bir sorgu ve bir anahtar seçin. Uzun metinlerde sayfa her sorgunun yalnız en büyük ağırlıklarını ve ötekiler için bir üst sınırı bilir.",
    "在此按编号或在上方单击，选择一个查询与一个键，查看该对在每个头中的权重。长文本中页面只知道每个查询最大的几个权重，以及其余权重的上限。",
  ],
  "view-query": ["Query", "Sorgu", "查询"],
  "view-key": ["Key", "Anahtar", "键"],
  "first-heads": ["the first {} of {} heads", "{1} kafanın ilk {0} tanesi", "共 {1} 个头中的前 {0} 个"],
  "first-item": ["the first item of a batch of {}", "{} öğeli yığının ilki", "批次共 {} 个，此为第一个"],
  "pooled-keys": [
    "{} cells for {} keys (each cell shows its largest weight)",
    "{1} anahtar için {0} hücre (her hücre en büyük ağırlığını gösterir)",
    "{1} 个键合为 {0} 格（每格显示其中最大的权重）",
  ],
  head: ["Head {}", "Kafa {}", "头 {}"],
  heads: ["Heads", "Kafalar", "头"],
  layers: ["Layers", "Katmanlar", "层"],
  queries: ["Queries", "Sorgular", "查询"],
  keys: ["Keys", "Anahtarlar", "键"],
  // The attention of an answer to passages
  "passages-title": ["Prompt and answer", "İstem ve yanıt", "提示与回答"],
  "passages-help": [
    "A stronger colour means that the answer read more of a passage. Choose a token of the answer to see what it read. A weight shows what the model read, not why it wrote a token.",
    "Daha koyu renk, yanıtın o bölümü daha çok okuduğu anlamına gelir. Neyi okuduğunu görmek için yanıttan bir parça seçin. Ağırlık modelin neyi okuduğunu gösterir, bir parçayı neden yazdığını göstermez.",
    "颜色越深，回答读该段落越多。选择回答中的一个词元，可看它读了什么。权重表示模型读了什么，并不说明它为何写出某个词元。",
  ],
  "passages-only": ["Only passages, scaled to 100%", "Yalnız bölümler, %100’e ölçeklenmiş", "只看段落，缩放到 100%"],
  "answer-read-most": ["The answer read most", "Yanıtın en çok okuduğu", "回答读得最多的是"],
  "token-read-most": ["“{}” read most", "“{}” parçasının en çok okuduğu", "“{}”读得最多的是"],
  "even-share": ["even share", "eşit pay", "均匀份额"],
  "passage-shares": ["Shares of each token", "Her parçanın payları", "每个词元的份额"],
  "passage-shares-help": [
    "Each bar divides the attention weight of a written token between the passages, in the colours above. Grey is the rest: other text, the first token and the answer itself. The largest passage is named. The first bar is the even share, each passage’s share of the prompt’s tokens.",
    "Her çubuk, yazılan bir parçanın dikkat ağırlığını yukarıdaki renklerle bölümlere ayırır. Gri kalandır: öteki metin, ilk parça ve yanıtın kendisi. En büyük bölümün adı yazılıdır. İlk çubuk eşit paydır, her bölümün istemdeki parçaların içindeki payı.",
    "每条色带按上面的颜色把一个写出词元的注意力权重分给各段落。灰色是其余部分：其他文本、第一个词元和回答本身。右侧为份额最大的段落。第一条是均匀份额，即各段落在提示词元中所占的比例。",
  ],
  "passage-weights": ["Weight of each passage", "Her bölümün ağırlığı", "每个段落的权重"],
  "all-layers": ["All layers", "Bütün katmanlar", "全部层"],
  "span-rest": ["rest of the prompt", "istemin kalanı", "提示的其余部分"],
  "span-first": ["first token", "ilk parça", "第一个词元"],
  "span-answer": ["answer so far", "o ana kadarki yanıt", "已写出的回答"],
  "span-sink": ["answer and sink", "yanıt ve dikkat kuyusu", "回答与注意力汇"],
  // The playground
  "regression": ["Attention is kernel regression", "Dikkat, çekirdek bağlanımıdır", "注意力就是核回归"],
  "regression-help": [
    "A query on the line attends to nearby points. Their weighted mean is the prediction. Drag the points, the query and the bandwidth.",
    "Doğru üzerindeki sorgu yakındaki noktalara bakar. Tahmin, onların ağırlıklı ortalamasıdır. Noktaları, sorguyu ve bant genişliğini sürükleyin.",
    "直线上的查询关注附近的点，它们的加权平均就是预测。可拖动各点、查询和带宽。",
  ],
  kernel: ["Kernel", "Çekirdek", "核"],
  gaussian: ["Gaussian", "Gauss", "高斯"],
  epanechnikov: ["Epanechnikov", "Epanechnikov", "Epanechnikov"],
  triangular: ["triangular", "üçgen", "三角"],
  boxcar: ["boxcar", "kutu", "矩形"],
  bandwidth: ["Bandwidth σ", "Bant genişliği σ", "带宽 σ"],
  "query-x": ["Query x", "Sorgu x", "查询 x"],
  prediction: ["Prediction", "Tahmin", "预测"],
  "no-point-in-range": ["no point within reach", "menzilde nokta yok", "范围内没有点"],
  point: ["Point {}", "Nokta {}", "点 {}"],
  "scores-title": ["Three scoring functions", "Üç skor fonksiyonu", "三种评分函数"],
  "scores-help": [
    "Keys and queries are points in the plane. Each matrix row is one query’s softmax over the keys. Drag a point, or move it with the arrow keys.",
    "Anahtarlar ve sorgular düzlemde noktalardır. Matrisin her satırı bir sorgunun anahtarlar üzerindeki softmax’ıdır. Bir noktayı sürükleyin ya da ok tuşlarıyla oynatın.",
    "键和查询是平面上的点；矩阵的每一行是一个查询对各键的 softmax。可拖动点，或用方向键移动。",
  ],
  dot: ["Dot product", "İç çarpım", "点积"],
  additive: ["Additive", "Toplamsal", "加性"],
  "gaussian-score": ["Gaussian", "Gauss", "高斯"],
  key: ["Key {}", "Anahtar {}", "键 {}"],
  "query-number": ["Query {}", "Sorgu {}", "查询 {}"],
  "softmax-title": ["Masked softmax", "Maskeli softmax", "带掩码的 softmax"],
  "softmax-help": [
    "Each row is a sentence. Positions beyond its length are padding, and get no weight. Drag the lengths. With length 0, all weights are 0.",
    "Her satır bir cümledir. Uzunluğundan sonraki konumlar dolgudur ve ağırlık almaz. Uzunlukları sürükleyin. Uzunluk 0 ise bütün ağırlıklar 0’dır.",
    "每一行是一个句子，其长度之后是填充，不会得到任何权重。拖动长度：为 0 时所有权重都是 0。",
  ],
  "length-of": ["Length of sentence {}", "{}. cümlenin uzunluğu", "第 {} 句的长度"],
  sentence: ["Sentence {}", "Cümle {}", "第 {} 句"],
  scores: ["Scores", "Skorlar", "分数"],
  weights: ["Weights", "Ağırlıklar", "权重"],
  padding: ["padding", "dolgu", "填充"],
  shuffle: ["New random numbers", "Yeni rastgele sayılar", "换一组随机数"],
  // Errors
  "too-long": [
    "The text has {} characters. The limit is 10,000. Split it.",
    "Metin {} karakter. Sınır 10.000’dir. Bölün.",
    "文本有 {} 个字符，上限是 10,000 个，请拆分。",
  ],
  "half-character": [
    "The text contains half a character (a lone surrogate). Type or paste it again.",
    "Metinde yarım bir karakter var. Yeniden yazın ya da yapıştırın.",
    "文本中含有半个字符（孤立代理项），请重新输入或粘贴。",
  ],
  "no-model": [
    "This page has no model that it can run ({}). Export it again. The playground still works.",
    "Bu sayfada çalıştırılabilecek bir model yok ({}). Yeniden dışa aktarın. Deneme alanı çalışır.",
    "本页面没有可以运行的模型（{}）。请重新导出；实验台仍可使用。",
  ],
  damaged: [
    "The model in this file is damaged ({}). Copy or export the file again. The playground still works.",
    "Bu dosyadaki model bozuk ({}). Dosyayı yeniden kopyalayın ya da dışa aktarın. Deneme alanı çalışır.",
    "此文件中的模型已损坏（{}）。请重新复制或导出该文件；实验台仍可使用。",
  ],
  "old-browser": [
    "This browser is too old to unpack the model ({}). Use a browser of mid-2023 or later.",
    "Bu tarayıcı modeli açmak için çok eski ({}). 2023 ortasından ya da sonrasından bir tarayıcı kullanın.",
    "浏览器版本过旧，无法解开模型（{}）。请使用 2023 年中或更新的版本。",
  ],
  "not-numbers": [
    "The model’s scores are not numbers: its weights are damaged, or its training diverged.",
    "Modelin skorları sayı değil: ağırlıkları bozuk ya da eğitimi ıraksamış.",
    "模型的分数不是数：权重已损坏，或训练发散。",
  ],
  "weight-number": ["A weight must be a number.", "Ağırlık bir sayı olmalı.", "权重必须是数。"],
  "weight-range": ["A weight must be between 0 and 100 %.", "Ağırlık %0 ile %100 arasında olmalı.", "权重必须在 0 到 100 % 之间。"],
  "weight-sum": [
    "The pinned weights of a step must not exceed 100 % in total. Unpin another word first.",
    "Bir adımın sabitlenen ağırlıklarının toplamı %100’ü aşamaz. Önce başka bir sözcüğün sabitlemesini kaldırın.",
    "一步中固定的权重之和不能超过 100 %。请先取消固定另一个词。",
  ],
  "weight-place": ["This sentence has no word {}.", "Bu cümlede {}. sözcük yok.", "句子中没有第 {} 个词。"],
  "step-place": [
    "The change at step {} is beyond the end of the translation.",
    "{}. adımdaki değişiklik çevirinin sonundan sonra.",
    "第 {} 步的改动超出了译文的末尾。",
  ],
  "token-place": [
    "The model cannot write the chosen word at this step ({}).",
    "Model seçilen sözcüğü bu adımda yazamaz ({}).",
    "该模型不能在这一步写出所选的词（{}）。",
  ],
  "tag-unclosed": [
    "{} is not closed. Tags must nest. Write &lt; for a < that begins no tag.",
    "{} kapatılmamış. Etiketler iç içe olmalı. Etiket başlatmayan bir < için &lt; yazın.",
    "{} 没有闭合。标签必须正确嵌套。不是标签开头的 < 请写成 &lt;。",
  ],
  "tag-stray": [
    "{} closes no open tag. Tags must nest. Write &lt; for a < that begins no tag.",
    "{} açık bir etiketi kapatmıyor. Etiketler iç içe olmalı. Etiket başlatmayan bir < için &lt; yazın.",
    "{} 没有对应的未闭合标签。标签必须正确嵌套。不是标签开头的 < 请写成 &lt;。",
  ],
  "tag-crossed": [
    "{} closes a tag while {} is open. Tags must nest. Write &lt; for a < that begins no tag.",
    "{}, {} açıkken bir etiketi kapatıyor. Etiketler iç içe olmalı. Etiket başlatmayan bir < için &lt; yazın.",
    "{} 出现时 {} 尚未闭合。标签必须正确嵌套。不是标签开头的 < 请写成 &lt;。",
  ],
  "tag-deep": [
    "{} is inside 99 other tags. Nest fewer tags.",
    "{} başka 99 etiketin içinde. Daha az etiketi iç içe koyun.",
    "{} 已在 99 层标签之内，请减少嵌套。",
  ],
  "tag-unattended": [
    "This model has no attention, so the page cannot place tags. Remove the tags.",
    "Bu modelde dikkat yok; sayfa etiketleri yerleştiremez. Etiketleri çıkarın.",
    "该模型没有注意力，无法放置标签。请去掉标签。",
  ],
  correct: ["Correct this translation", "Bu çeviriyi düzelt", "更正这个译文"],
  "right-translation": ["Right translation", "Doğru çeviri", "正确的译文"],
  "save-correction": ["Save", "Kaydet", "保存"],
  cancel: ["Cancel", "Vazgeç", "取消"],
  remove: ["Remove: {}", "Kaldır: {}", "删除：{}"],
  add: ["Add", "Ekle", "添加"],
  "correction-saved": ["Corrected. Similar sentences follow the correction.", "Düzeltildi. Benzer cümleler düzeltmeyi izler.", "已更正。相似的句子会参照这个更正。"],
  "correction-replaced": ["It replaces this correction: “{}” → “{}”", "Şu düzeltmenin yerine geçti: “{}” → “{}”", "它取代了这个更正：“{}” → “{}”"],
  "correction-outdated": [
    "This page's file has another correction of this sentence. It is used instead of yours, “{}”: “{}” → “{}”",
    "Bu sayfanın dosyasında bu cümlenin başka bir düzeltmesi var. Sizinkinin (“{}”) yerine o kullanılıyor: “{}” → “{}”",
    "本页面的文件对这个句子另有更正，因此不采用您的“{}”：“{}” → “{}”",
  ],
  corrections: ["Your corrections ({})", "Düzeltmeleriniz ({})", "您的更正（{}）"],
  "corrections-help": ["They are lost when you close the page, so save them.", "Sayfa kapanınca silinirler; bu yüzden kaydedin.", "关闭页面后会丢失，请保存。"],
  "corrections-kept": [
    "This browser keeps them for this model. Save them to store them in the model folder:",
    "Bu tarayıcı onları bu model için saklar. Model klasöründe saklamak için kaydedin:",
    "浏览器会为这个模型保留它们。要存入模型文件夹，请先保存：",
  ],
  "save-tsv": ["Save as TSV", "TSV olarak kaydet", "存为 TSV"],
  terms: ["Terms", "Terimler", "术语"],
  "terms-count": ["Terms ({})", "Terimler ({})", "术语（{}）"],
  "terms-help": [
    "Give the translation of a word or phrase. The page uses it, in the form that fits the sentence. You can also paste two columns of a spreadsheet.",
    "Bir sözcüğün ya da öbeğin çevirisini verin. Sayfa onu cümleye uyan biçimiyle kullanır. Bir tablonun iki sütununu da yapıştırabilirsiniz.",
    "给出一个词或短语的译法，页面会以适合句子的形式使用它。也可以粘贴电子表格的两列。",
  ],
  "terms-added": ["Terms added: {}.", "Eklenen terim: {}.", "已添加术语：{}。"],
  "term-source": ["Word or phrase", "Sözcük ya da öbek", "词或短语"],
  "term-target": ["Its translation", "Çevirisi", "译法"],
  "term-invalid": [
    "A term needs a letter or a digit, and at most {} characters.",
    "Bir terimde harf ya da rakam bulunmalı; en çok {} karakter olabilir.",
    "术语须含字母或数字，最多 {} 个字符。",
  ],
  "term-replaced": ["“{}” is now translated as “{}” instead of “{}”.", "“{}” teriminin çevirisi artık “{}” (önceki: “{}”).", "“{}”现译为“{}”，不再译为“{}”。"],
  confidence: ["confidence: {}", "güven: {}", "置信度：{}"],
  "confidence-definition": [
    "confidence = estimated probability that the translation is right (chrF of at least 80 with a human translation)",
    "güven = çevirinin doğru olma olasılığı tahmini (bir insan çevirisiyle chrF en az 80)",
    "置信度 = 译文正确的估计概率（与人工译文的 chrF 至少为 80）",
  ],
  "lost numbers": ["lost numbers:", "kayıp sayılar:", "丢失的数字："],
  "lost placeholders": ["lost placeholders:", "kayıp yer tutucular:", "丢失的占位符："],
  "invented numbers": ["invented numbers:", "uydurulmuş sayılar:", "凭空出现的数字："],
  "unused terms": ["unused terms:", "kullanılmayan terimler:", "未用的术语："],
  "correction-used": ["from a correction: {}", "bir düzeltmeden: {}", "来自更正：{}"],
  "correction-empty": ["Write the right translation.", "Doğru çeviriyi yazın.", "请写出正确的译文。"],
  "correction-letters": [
    "A text without letters is always copied, so you cannot correct it.",
    "Harf içermeyen bir metin hep kopyalanır; bu yüzden düzeltilemez.",
    "没有字母的文本总是照抄，不能更正。",
  ],
} satisfies Record<string, [string, string, string]>;

export type Phrase = keyof typeof TABLE;

const COLUMNS: Record<Language, number> = { en: 0, tr: 1, zh: 2 };

let language: Language = "en";

export function setLanguage(code: Language): void {
  language = code;
}

export const currentLanguage = (): Language => language;

/** Two languages, such as English → French. Codes such as "en" become names in the reader's language. */
export function languagePair([source, target]: readonly [string, string]): string {
  const names = new Intl.DisplayNames([language], { type: "language" });
  const name = (language: string): string | undefined => (/^[a-z]{2,3}(-[A-Za-z]{2,4})?$/.test(language) ? names.of(language) : language);
  return `${name(source)} → ${name(target)}`;
}

/** A phrase in the reader's language, with values instead of its placeholders. */
export function t(phrase: Phrase, ...values: (string | number)[]): string {
  let next = 0;
  return TABLE[phrase][COLUMNS[language]]!.replace(/\{(\d?)\}/g, (_, index: string) => String(values[index ? Number(index) : next++] ?? ""));
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

/** A number that fits into a cell of a map. */
export const brief = (value: number): string =>
  value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 100)
    ? value.toLocaleString(language, { maximumFractionDigits: Math.abs(value) < 1 ? 3 : 1 })
    : value.toExponential(0);

/** A short number with its sign. */
export const signed = (value: number): string => (value > 0 ? "+" : "") + brief(value);

/** The browser's first language with phrases, or English. */
export function preferredLanguage(languages: readonly string[]): Language {
  for (const language of languages) {
    const code = language.slice(0, 2).toLowerCase();
    if (code in LANGUAGES) return code as Language;
  }
  return "en";
}
