// Builds src/main.ts and src/living.css to the two files in the wheel; --check fails if those files differ from the build.
import { build } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import wabt from "wabt";

const here = dirname(fileURLToPath(import.meta.url));

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
  entryPoints: [{ in: resolve(here, "src/main.ts"), out: "living" }, { in: resolve(here, "src/living.css"), out: "living" }],
  outdir: resolve(here, "../src/dikkat/show"),
  bundle: true,
  format: "esm",
  target: ["es2022"],
  minify: true,
  charset: "utf8",
  legalComments: "none",
  banner: { js: "// Built from web/src by `npm run build`: do not edit.", css: "/* Built from web/src by `npm run build`: do not edit. */" },
  plugins: [webAssembly],
  write: false,
});
for (const { path, text } of outputFiles) {
  if (!process.argv.includes("--check")) {
    await writeFile(path, text);
    console.log(`${path}: ${(text.length / 1000).toFixed(0)} kB`);
  } else if (text !== await readFile(path, "utf8").catch(() => "")) {
    console.error(`${path}: not what web/src builds to. Run: npm --prefix web run build`);
    process.exitCode = 1;
  }
}
