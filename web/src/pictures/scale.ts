/** Colours of weights on pictures. Their lightness rises in uniform steps, so they are readable without hue. */

/** Stops of matplotlib's "inferno", without its darkest third. */
const STOPS = [[74, 12, 107], [120, 28, 109], [165, 44, 96], [207, 68, 70], [237, 105, 37], [251, 155, 6], [247, 209, 61], [252, 255, 164]] as const;
const FAINT = 0.05; // opacity of a weight of 0
const STEPS = 255;
/** Red, green and blue of positive and of negative numbers. */
export const TINTS = [[20, 130, 200], [222, 106, 16]] as const;

export type Colour = readonly [red: number, green: number, blue: number, opacity: number];

export interface Scale {
  /** The weight with the strongest colour. */
  readonly max: number;
  /** Exponent of the share of `max`: below 1, small weights are stronger. */
  readonly gamma: number;
  readonly signed: boolean;
}

const COLOURS = Array.from({ length: STEPS + 1 }, (_, step): Colour => {
  const share = step / STEPS;
  const stop = share * (STOPS.length - 1);
  const [lower, upper] = [STOPS[Math.floor(stop)]!, STOPS[Math.ceil(stop)]!];
  const mix = (k: 0 | 1 | 2): number => Math.round(lower[k] + (upper[k] - lower[k]) * (stop % 1));
  return [mix(0), mix(1), mix(2), FAINT + (1 - FAINT) * share];
});

/** The colour of a weight: by size, or for signed weights by sign, with the size as opacity. */
export function colourOf(weight: number, { max, gamma, signed }: Scale): Colour {
  const share = max > 0 ? Math.min(1, Math.abs(weight) / max) ** gamma : 0;
  return signed ? [...TINTS[weight < 0 ? 1 : 0], share] : COLOURS[Math.round(share * STEPS)]!;
}

export const cssColour = ([red, green, blue, opacity]: Colour): string => `rgb(${red} ${green} ${blue} / ${+opacity.toFixed(3)})`;

/** A colour as attributes of an SVG element. */
export const fillOf = ([red, green, blue, opacity]: Colour) => ({ fill: `rgb(${red}, ${green}, ${blue})`, "fill-opacity": +opacity.toFixed(3) });

/** A CSS gradient of a scale's colours, from its smallest weight to its largest. */
export function colourGradient(scale: Scale): string {
  const minimum = scale.signed ? -scale.max : 0;
  return `linear-gradient(to right, ${Array.from({ length: 17 }, (_, k) => cssColour(colourOf(minimum + ((scale.max - minimum) * k) / 16, scale))).join(", ")})`;
}
