/** Downloads of drawings, canvases and numbers as SVG, PNG and text files, and printing. */
import { backgroundOf, h, s } from "./dom";

const STYLED = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family", "font-size",
  "font-weight", "text-anchor", "dominant-baseline", "visibility",
];

/** The SVG text of a drawing with its computed styles, so it needs no style sheet. */
function standalone(drawing: SVGSVGElement): string {
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  const originals = [...drawing.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((element, k) => {
    const style = getComputedStyle(originals[k]!);
    for (const name of STYLED) element.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex", "role", "aria-label", "aria-pressed"]) element.removeAttribute(name);
  });
  const { width, height } = drawing.viewBox.baseVal;
  copy.prepend(s("rect", { width: "100%", height: "100%", fill: backgroundOf(drawing) }));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  for (const name of ["class", "tabindex", "role", "style"]) copy.removeAttribute(name);
  return new XMLSerializer().serializeToString(copy);
}

function download(content: Blob, name: string): void {
  const url = URL.createObjectURL(content);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const saveText = (text: string, name: string, type: string): void => download(new Blob([text], { type }), name);

export const saveSvg = (drawing: SVGSVGElement, name: string): void =>
  saveText(standalone(drawing), `${name}.svg`, "image/svg+xml");

/** Saves a drawing as PNG at twice its size. */
export async function savePng(drawing: SVGSVGElement, name: string): Promise<void> {
  const { width, height } = drawing.viewBox.baseVal;
  const scale = Math.min(2, 8000 / Math.max(width, height));
  const url = URL.createObjectURL(new Blob([standalone(drawing)], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = h("canvas", { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(url);
  await saveAsPng(canvas, name);
}

/** Prints only a drawing, which browsers can save as PDF. */
export function printDrawing(drawing: SVGSVGElement): void {
  const copy = new DOMParser().parseFromString(standalone(drawing), "image/svg+xml").documentElement;
  const { width, height } = drawing.viewBox.baseVal;
  copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const sheet = h("div", { class: "sheet" }, copy);
  document.body.append(sheet);
  addEventListener("afterprint", () => sheet.remove(), { once: true });
  print();
}

/** Saves a canvas as PNG on the background of its card. */
export async function saveCanvas(original: HTMLCanvasElement, name: string): Promise<void> {
  const canvas = h("canvas", { width: original.width, height: original.height });
  const context = canvas.getContext("2d")!;
  context.fillStyle = backgroundOf(original);
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(original, 0, 0);
  await saveAsPng(canvas, name);
}

async function saveAsPng(canvas: HTMLCanvasElement, name: string): Promise<void> {
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (blob) download(blob, `${name}.png`);
}
