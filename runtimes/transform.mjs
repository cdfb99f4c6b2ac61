// Strips types and lists imports, one file at a time, in a process of its own. The files are data: nothing
// of them runs, and esbuild's transform() resolves nothing, so it reads no other file.
//
// In:  {"modules": <folder of packages>, "sources": {name: text}} on standard input.
// Out: {"esbuild": version, "results": {name: {"pieces", "imports", "exports"} | {"problem"}}}.
// A file's code is pieces[0] + imports[0] + pieces[1] + ...: it is cut at each specifier, without its quotes.
import { readFileSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { modules, sources } = JSON.parse(readFileSync(0, "utf8"));
const load = (path) => import(pathToFileURL(`${modules}/${path}`).href);
const { default: esbuild } = await load("esbuild/lib/main.js");
const { init, parse } = await load("es-module-lexer/dist/lexer.js");
await init;

function cut(code, name) {
  const [found, exported] = parse(code, name);
  const literal = found
    .filter((one) => one.type !== "import-meta" && !(one.type === "dynamic" && (one.glob || one.specifier === undefined)))
    .sort((one, other) => one.start - other.start);
  const pieces = [];
  let at = 0;
  for (const one of literal) {
    const quote = one.type === "dynamic" ? 1 : 0;
    pieces.push(code.slice(at, one.start + quote));
    at = one.end - quote;
  }
  pieces.push(code.slice(at));
  return { pieces, imports: literal.map((one) => one.specifier), exports: exported.map((one) => one.name ?? "*") };
}

async function read(name, text) {
  const options = {
    loader: /\.m?ts$/.test(name) ? "ts" : "js",
    // The newest that both runtimes take; it also drops import attributes, which one of them refuses.
    target: "es2022",
    tsconfigRaw: "{}",
    sourcemap: false,
    sourcefile: name,
    charset: "utf8",
    logLevel: "silent",
  };
  try {
    return cut((await esbuild.transform(text, options)).code, name);
  } catch (error) {
    const first = error?.errors?.[0];
    if (!first) {
      await esbuild.stop(); // it may have died of this file; the next one gets a new one
      return { problem: { line: null, text: "The file is too large or too deeply nested to be read." } };
    }
    return { problem: { line: first.location?.line ?? null, text: first.text } };
  }
}

const results = {};
for (const [name, text] of Object.entries(sources)) results[name] = await read(name, text);
const out = Buffer.from(JSON.stringify({ esbuild: esbuild.version, results }));
for (let at = 0; at < out.length; ) at += writeSync(1, out, at);
process.exit(0);
