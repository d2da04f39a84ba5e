// Builds src/main.ts to the one file that lies in the wheel; with --check, says whether that file is what would be built.
import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import wabt from "wabt";

const here = dirname(fileURLToPath(import.meta.url));
const built = resolve(here, "../src/dikkat/show/living.js");

/** WebAssembly text as its bytes in base64: so small that it is compiled at once, and nothing has to be fetched. */
const webAssembly = {
  name: "wat",
  setup(build) {
    build.onLoad({ filter: /\.wat$/ }, async ({ path }) => {
      const module = (await wabt()).parseWat(path, await readFile(path, "utf8"), { simd: true });
      const contents = Buffer.from(module.toBinary({}).buffer).toString("base64");
      return { contents, loader: "text" };
    });
  },
};

const { outputFiles } = await build({
  entryPoints: [resolve(here, "src/main.ts")],
  bundle: true,
  format: "esm",
  target: ["es2022"],
  minify: true,
  charset: "utf8",
  legalComments: "none",
  banner: { js: "// Built from web/src by `npm run build`: do not edit." },
  plugins: [webAssembly],
  write: false,
});
const text = outputFiles[0].text;
if (process.argv.includes("--check")) {
  const found = await readFile(built, "utf8").catch(() => "");
  if (found !== text) {
    console.error(`${built}: not what web/src builds to. Run: npm --prefix web run build`);
    process.exit(1);
  }
} else {
  await writeFile(built, text);
  console.log(`${built}: ${(text.length / 1000).toFixed(0)} kB`);
}
