/** Colours of weights on pictures: from dark to light in even steps, so that they can be told apart without hue. */

/** Stops of matplotlib's "inferno", without its darkest third. */
const STOPS = [[74, 12, 107], [120, 28, 109], [165, 44, 96], [207, 68, 70], [237, 105, 37], [251, 155, 6], [247, 209, 61], [252, 255, 164]] as const;
const FAINT = 0.05; // opacity of a weight of 0, where the image is seen
const STEPS = 255;
/** Red, green and blue of a number above 0 and of one below, where numbers have signs. */
export const TINTS = [[20, 130, 200], [222, 106, 16]] as const;

export type Colour = readonly [red: number, green: number, blue: number, opacity: number];

export interface Scale {
  /** The weight with the strongest colour. */
  readonly full: number;
  /** Exponent of the share of `full`: below 1, small weights are stronger. */
  readonly gamma: number;
  readonly signed: boolean;
}

const COLOURS = Array.from({ length: STEPS + 1 }, (_, step): Colour => {
  const share = step / STEPS;
  const at = share * (STOPS.length - 1);
  const [from, to] = [STOPS[Math.floor(at)]!, STOPS[Math.ceil(at)]!];
  const mixed = (k: 0 | 1 | 2): number => Math.round(from[k] + (to[k] - from[k]) * (at % 1));
  return [mixed(0), mixed(1), mixed(2), FAINT + (1 - FAINT) * share];
});

/** The colour of a weight: of its size, or of its sign with its size as the opacity. */
export function colourOf(weight: number, { full, gamma, signed }: Scale): Colour {
  const share = full > 0 ? Math.min(1, Math.abs(weight) / full) ** gamma : 0;
  return signed ? [...TINTS[weight < 0 ? 1 : 0], share] : COLOURS[Math.round(share * STEPS)]!;
}

export const css = ([red, green, blue, opacity]: Colour): string => `rgb(${red} ${green} ${blue} / ${+opacity.toFixed(3)})`;

/** A colour as attributes of an SVG element. */
export const filled = ([red, green, blue, opacity]: Colour) => ({ fill: `rgb(${red}, ${green}, ${blue})`, "fill-opacity": +opacity.toFixed(3) });

/** CSS of a band with the colours of a scale, from its smallest weight to its largest. */
export function band(scale: Scale): string {
  const from = scale.signed ? -scale.full : 0;
  return `linear-gradient(to right, ${Array.from({ length: 17 }, (_, k) => css(colourOf(from + ((scale.full - from) * k) / 16, scale))).join(", ")})`;
}
