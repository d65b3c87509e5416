// Fails when modules of src import each other in a circle, imports of types included: `node cycles.mjs [folder]`.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import path from "node:path";
import ts from "typescript";

const root = path.resolve(process.argv[2] ?? fileURLToPath(new URL("src", import.meta.url)));
const files = readdirSync(root, { recursive: true }).filter((name) => /\.tsx?$/.test(name)).map((name) => path.join(root, name));

/** The modules of src that a module imports. */
function imports(file) {
  const { importedFiles } = ts.preProcessFile(readFileSync(file, "utf8"));
  return importedFiles
    .filter(({ fileName }) => fileName.startsWith("."))
    .flatMap(({ fileName }) => {
      const target = path.resolve(path.dirname(file), fileName);
      return [".ts", ".tsx", ".d.ts"].map((ending) => target + ending).filter(existsSync);
    });
}

const graph = new Map(files.map((file) => [file, imports(file)]));
const done = new Set();

/** The first circle on the way from a module, as the modules along it; null where there is none. */
function circle(file, way) {
  if (way.includes(file)) return [...way.slice(way.indexOf(file)), file];
  if (done.has(file)) return null;
  for (const next of graph.get(file) ?? []) {
    const found = circle(next, [...way, file]);
    if (found) return found;
  }
  done.add(file);
  return null;
}

for (const file of files) {
  const found = circle(file, []);
  if (!found) continue;
  console.error(`import cycle: ${found.map((each) => path.relative(root, each)).join(" -> ")}`);
  process.exitCode = 1;
  break;
}
