/** Downloads: SVG and PNG files of drawings, PNG files of canvases, JSON of the numbers; and paper. */
import { backgroundOf, h, s } from "./dom";

const STYLED = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family", "font-size",
  "font-weight", "text-anchor", "dominant-baseline", "visibility",
];

/** SVG text of a drawing with its computed styles inside, so that it needs no style sheet. */
function standalone(drawing: SVGSVGElement): string {
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  const own = [...drawing.querySelectorAll("*")];
  [...copy.querySelectorAll("*")].forEach((element, k) => {
    const style = getComputedStyle(own[k]!);
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
  const place = URL.createObjectURL(content);
  h("a", { href: place, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(place), 10_000);
}

export const saveText = (text: string, name: string, type: string): void => download(new Blob([text], { type }), name);

export const saveSvg = (drawing: SVGSVGElement, name: string): void =>
  saveText(standalone(drawing), `${name}.svg`, "image/svg+xml");

/** Saves a drawing as PNG at twice its size. */
export async function savePng(drawing: SVGSVGElement, name: string): Promise<void> {
  const { width, height } = drawing.viewBox.baseVal;
  const scale = Math.min(2, 8000 / Math.max(width, height));
  const place = URL.createObjectURL(new Blob([standalone(drawing)], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = place;
  await image.decode();
  const canvas = h("canvas", { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(place);
  await saveAsPng(canvas, name);
}

/** Prints a drawing alone on a sheet, which browsers save as PDF. */
export function printAlone(drawing: SVGSVGElement): void {
  const copy = new DOMParser().parseFromString(standalone(drawing), "image/svg+xml").documentElement;
  const { width, height } = drawing.viewBox.baseVal;
  copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const sheet = h("div", { class: "sheet" }, copy);
  document.body.append(sheet);
  addEventListener("afterprint", () => sheet.remove(), { once: true });
  print();
}

/** Saves a canvas as PNG on the background of its card. */
export async function saveCanvas(painted: HTMLCanvasElement, name: string): Promise<void> {
  const canvas = h("canvas", { width: painted.width, height: painted.height });
  const context = canvas.getContext("2d")!;
  context.fillStyle = backgroundOf(painted);
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(painted, 0, 0);
  await saveAsPng(canvas, name);
}

async function saveAsPng(canvas: HTMLCanvasElement, name: string): Promise<void> {
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (blob) download(blob, `${name}.png`);
}
