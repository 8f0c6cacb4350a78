// The page in a real browser, watching a real run on this machine.
//   node test/run_test.mjs PROGRAM [FOLDER FOR SCREENSHOTS]
// Starts a small training, looks at it, kills a stage, pauses, resumes and stops it. Waits for what it expects, for at
// most kPatienceMs; a failure ends it with one line and status 1.
import puppeteer from 'puppeteer-core';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const kPatienceMs = 300_000;
const [program, shots] = process.argv.slice(2);
const data = mkdtempSync(join(tmpdir(), 'thinpipe-page-'));

const train = spawn(program, ['train', '--steps', '100000', '--set', 'model.d=64', '--set', 'model.heads=2', '--set',
  'train.seq_len=64', '--set', 'train.threads=1', '--set', 'train.eval_every=30', '--set', 'checkpoint.every=10'],
{ env: { ...process.env, THINPIPE_DATA_DIR: data }, stdio: ['ignore', 'pipe', 'inherit'] });
let said = '';
train.stdout.on('data', (text) => { said += text; });

// Until `look` returns something.
async function waitFor(what, look) {
  for (const deadline = Date.now() + kPatienceMs; Date.now() < deadline;) {
    const found = look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`waited in vain for ${what}; thinpipe said: ${said.slice(-300)}`);
}

// The process that holds a stage.
function workerOf(stage) {
  return readdirSync('/proc').filter((name) => /^\d+$/.test(name)).map(Number).find((pid) => {
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
      return words[1] === 'work' && words.some((word) => word.startsWith(data) && word.endsWith(`/workers/${stage}`));
    } catch {
      return false;
    }
  });
}

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'],
  protocolTimeout: 2 * kPatienceMs,
});

async function open(address, { width = 1280, height = 1500, scheme = 'light' } = {}) {
  const page = await browser.newPage();
  page.setDefaultTimeout(kPatienceMs);
  page.on('request', (request) => {
    assert.ok(request.url().startsWith(new URL(address).origin), `request to another origin: ${request.url()}`);
  });
  page.on('pageerror', (error) => { throw error; });
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
  await page.goto(address);
  return page;
}

const shot = async (page, name) => { if (shots) await page.screenshot({ path: join(shots, `${name}.png`) }); };
const until = (page, condition, ...values) => page.waitForFunction(condition, { polling: 50 }, ...values);
const step = (page) => page.$eval('#progress-text', (node) =>
  Number(/step ([\d,]+)/.exec(node.textContent)[1].replaceAll(',', '')));
const stepPasses = (page, least) => until(page, (least) => {
  const found = /step ([\d,]+)/.exec(document.querySelector('#progress-text').textContent);
  return found && Number(found[1].replaceAll(',', '')) > least;
}, least);
const loss = (page) => page.$eval('.tile', (node) => Number(/\d+\.\d+/.exec(node.textContent)[0]));

async function test() {
  const address = await waitFor('the address of the dashboard', () => /dashboard: (http\S+)/.exec(said)?.[1]);
  const page = await open(address);
  await stepPasses(page, 0);
  const first = await loss(page);
  await stepPasses(page, 60);
  assert.ok(await loss(page) < first, 'the loss does not fall');
  await until(page, () => document.querySelectorAll('.seat.at-work').length === 4);
  console.log('ok the loss falls');
  await shot(page, 'dashboard');

  // A killed stage is started again at once, so this one is frozen: the coordinator misses it, and then it is killed.
  const frozen = await waitFor('the worker of stage 2', () => workerOf(2));
  process.kill(frozen, 'SIGSTOP');
  await until(page, () => document.querySelectorAll('.seat.away, .seat.empty').length === 1);
  await shot(page, 'dashboard-stage-away');
  const before = await step(page);
  process.kill(frozen, 'SIGKILL');
  await until(page, () => document.querySelectorAll('.seat.at-work').length === 4);
  await stepPasses(page, before);
  await until(page, () => /worker-2|stage 2/.test(document.querySelector('#events').textContent));
  console.log('ok a stage that dies is shown dead, with the reason, and comes back');

  await until(page, () => !document.querySelector('#pause').disabled);
  await page.click('#pause');
  await until(page, () => document.querySelector('#pause').textContent === 'Resume' &&
    !document.querySelector('#pause').disabled);
  const paused = await step(page);
  await page.click('#pause');
  await stepPasses(page, paused);
  console.log('ok pause and resume from the page');

  const stranger = await open(address.split('#')[0]);
  await stepPasses(stranger, 0);
  assert.ok(await stranger.$eval('#pause', (button) => button.disabled), 'a page without the token may pause');
  await stranger.close();
  console.log('ok without the token the page only shows');

  const phone = await open(address, { width: 390, height: 844, scheme: 'dark' });
  await stepPasses(phone, 0);
  await until(phone, () => document.querySelectorAll('.seat.at-work').length === 4);
  const [wide, room] = await phone.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(wide <= room, `the page is ${wide} pixels wide in a window of ${room}`);
  await shot(phone, 'dashboard-phone');
  console.log('ok on a phone in the dark');
}

try {
  await test();
} catch (error) {
  console.error(`run_test: ${error.message.split('\n')[0]}`);
  process.exitCode = 1;
}
await browser.close();
train.kill('SIGKILL');
await new Promise((resolve) => { train.on('exit', resolve); });
rmSync(data, { recursive: true, force: true, maxRetries: 10 });
