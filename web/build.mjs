// Bundles the page into the Python package: an ES module and a style sheet, shared by the server, the notebook widget
// and saved pages, and the short loader of the widget. `node build.mjs --check` only compares them with these sources.
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import path from "node:path";
import * as esbuild from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.resolve(here, "../src/glassformer/explorer/page");
const settings = {
  absWorkingDir: here,
  entryPoints: { explorer: "src/main.tsx", widget: "src/loader.ts" },
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  outdir: out,
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  logLevel: "warning",
};

if (process.argv.includes("--watch")) {
  const context = await esbuild.context({ ...settings, minify: false });
  await context.watch();
} else {
  const { outputFiles } = await esbuild.build({ ...settings, write: false });
  const check = process.argv.includes("--check");
  await mkdir(out, { recursive: true });
  for (const file of outputFiles) {
    if (!check) {
      await writeFile(file.path, file.text);
      continue;
    }
    const there = await readFile(file.path, "utf8").catch(() => "");
    if (there !== file.text) {
      console.error(`${path.relative(process.cwd(), file.path)} is not what web/ makes: run 'make page'.`);
      process.exitCode = 1;
    }
  }
}
