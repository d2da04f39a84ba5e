/** Strip of a vector's values: teal above 0, orange below, opacity by magnitude. */
import { s } from "../page/dom";

const MOST = 128; // most bars; in a longer vector each is a mean of neighbours

export function strip(vector: ArrayLike<number>, label: string): SVGSVGElement {
  const count = Math.min(MOST, vector.length);
  const means = Array.from({ length: count }, (_, k) => {
    const [start, end] = [k, k + 1].map((each) => Math.floor((each * vector.length) / count));
    let sum = 0;
    for (let i = start!; i < end!; i++) sum += vector[i]!;
    return sum / (end! - start!);
  });
  const most = Math.max(...means.map(Math.abs), 1e-12);
  return s(
    "svg",
    { viewBox: `0 0 ${count} 10`, preserveAspectRatio: "none", class: "strip", role: "img", "aria-label": label },
    ...means.map((mean, k) =>
      s("rect", { x: k, y: 0, width: 1.05, height: 10, class: mean < 0 ? "below" : "above", "fill-opacity": (Math.abs(mean) / most).toFixed(3) })),
  );
}
