/** A strip of a vector's values: teal if positive, orange if negative, with opacity by magnitude. */
import { s } from "../page/dom";

const MAX_BARS = 128; // a bar of a longer vector is the mean of neighbours

export function drawStrip(vector: ArrayLike<number>, label: string): SVGSVGElement {
  const count = Math.min(MAX_BARS, vector.length);
  const means = Array.from({ length: count }, (_, k) => {
    const [start, end] = [k, k + 1].map((bar) => Math.floor((bar * vector.length) / count));
    let sum = 0;
    for (let i = start!; i < end!; i++) sum += vector[i]!;
    return sum / (end! - start!);
  });
  const largest = Math.max(...means.map(Math.abs), 1e-12);
  return s(
    "svg",
    { viewBox: `0 0 ${count} 10`, preserveAspectRatio: "none", class: "strip", role: "img", "aria-label": label },
    ...means.map((mean, k) =>
      s("rect", { x: k, y: 0, width: 1.05, height: 10, class: mean < 0 ? "below" : "above", "fill-opacity": (Math.abs(mean) / largest).toFixed(3) })),
  );
}
