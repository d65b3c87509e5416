// Runs the tests of modules that need no browser: bundles each file of tests/ and gives it to Node's test runner.
import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import path from "node:path";
import * as esbuild from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.join(here, "node_modules", ".cache", "tests");
const names = readdirSync(path.join(here, "tests")).filter((name) => name.endsWith(".test.ts"));
rmSync(out, { recursive: true, force: true });
await esbuild.build({
  absWorkingDir: here,
  entryPoints: names.map((name) => `tests/${name}`),
  bundle: true,
  platform: "node",
  format: "esm",
  outExtension: { ".js": ".mjs" },
  sourcemap: "inline",
  outdir: out,
  logLevel: "warning",
});
const bundles = names.map((name) => path.join(out, name.replace(/\.ts$/, ".mjs")));
process.exitCode = spawnSync(process.execPath, ["--enable-source-maps", "--test", "--test-reporter=dot", ...bundles], { stdio: "inherit" }).status ?? 1;
