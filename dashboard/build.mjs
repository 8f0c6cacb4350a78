// Bundles src/ into built/, which is committed so that building thinpipe needs no npm. The result depends only on the
// sources and on the versions in package-lock.json.
import { build } from 'esbuild';
import { copyFileSync, mkdirSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';

process.chdir(dirname(fileURLToPath(import.meta.url)));
mkdirSync('built', { recursive: true });
const license = readFileSync('node_modules/uplot/LICENSE', 'utf8').trim();
await build({
  entryPoints: { app: 'src/main.ts' },
  outdir: 'built',
  bundle: true,
  minify: true,
  format: 'iife',
  target: ['es2022'],
  charset: 'utf8',
  legalComments: 'none',
  banner: { js: `/* Contains uPlot:\n${license}\n*/` },
  logLevel: 'warning',
});
copyFileSync('src/index.html', 'built/index.html');
