// The built page in a real browser, against the fake server.
//   node test/page_test.mjs [PART OF A TEST'S NAME]
// CHROMIUM names the browser; the default is /usr/bin/chromium. Prints "ok NAME" for each test. The first failure ends
// it with one line and status 1. Tests wait for what they expect, for at most kPatienceMs. Times are only printed.
import puppeteer from 'puppeteer-core';
import assert from 'node:assert/strict';
import { FakeRun, kToken, serve } from '../dev/fake_server.mjs';

const kPatienceMs = 90_000;
const kHostile = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u202egnp';

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'],
  protocolTimeout: 2 * kPatienceMs,
});

// A fake run and a page that looks at it. Collects what the browser complains of and requests to other origins.
async function open(scenario, { token = '', locked = false, width = 1280, scheme = 'light', prepare = () => {} } = {}) {
  const run = new FakeRun(scenario);
  prepare(run);
  const fake = await serve(run, { locked });
  const page = await browser.newPage();
  page.setDefaultTimeout(kPatienceMs);
  const faults = [];
  page.on('pageerror', (error) => faults.push(`error: ${error.message}`));
  page.on('console', (message) => {
    const text = message.text();
    if (message.type() === 'error' && !text.startsWith('Failed to load resource')) faults.push(text);
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(fake.url)) faults.push(`request to another origin: ${request.url()}`);
  });
  await page.setViewport({ width, height: 800 });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
  await page.goto(fake.url + (token && `#${token}`));
  const seen = {
    run, fake, page, faults,
    push: () => fake.push(),
    text: (selector) => page.$eval(selector, (node) => node.textContent),
    // Until the text of `selector` holds `part`.
    async shows(selector, part) {
      await page.waitForFunction((selector, part) => document.querySelector(selector)?.textContent.includes(part), {},
        selector, part).catch(async () => {
        const text = await page.$eval(selector, (node) => node.textContent).catch(() => 'nothing');
        throw new Error(`${selector} shows "${text.slice(0, 120)}", not "${part}"`);
      });
    },
    async becomes(what, condition, ...values) {
      await page.waitForFunction(condition, {}, ...values).catch(() => {
        throw new Error(`it never held that ${what}`);
      });
    },
    async close() {
      await page.close();
      await fake.close();
    },
  };
  if (!locked) await seen.shows('#progress-text', 'step');
  return seen;
}

// Until the curves reach `step`.
const curvesReach = (seen, step) => seen.becomes(`the curves reach step ${step}`, (step) =>
  document.querySelector('.wide-figure .plot')?.getAttribute('aria-label')?.endsWith(` to ${step}`), step);

const noSideways = async ({ page }) => {
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(wide <= room, `the page is ${wide} pixels wide in a window of ${room}`);
};

const brightness = (page, property) => page.$eval('body', (body, property) => {
  const [r, g, b] = getComputedStyle(body)[property].match(/\d+/g).map(Number);
  return (r + g + b) / 765;
}, property);

const tests = {
  async Loss_WhenStepsPass_IsShownAndGrows() {
    const seen = await open('small');
    await seen.shows('.tile', seen.run.loss(457).toFixed(4));
    await curvesReach(seen, '457');
    for (let i = 0; i < 3; ++i) seen.run.advance();
    seen.push();
    await seen.shows('#progress-text', 'step 460 of 1,200');
    await seen.shows('.tile', seen.run.loss(460).toFixed(4));
    await curvesReach(seen, '460');
    return seen;
  },

  async History_WhenManyStepsPass_IsAskedForAtMostOnceASecond() {
    const seen = await open('small');
    await curvesReach(seen, '457');
    const asked = () => seen.fake.requests.filter((line) => line.includes('/steps?')).length;
    const [start, before] = [performance.now(), asked()];
    for (let step = 458; step <= 480; ++step) {
      seen.run.advance();
      seen.push();
      await seen.shows('#progress-text', `step ${step} `);
    }
    await curvesReach(seen, '480');
    const most = (performance.now() - start) / 1000 + 2;
    assert.ok(asked() - before <= most, `asked ${asked() - before} times`);
    return seen;
  },

  async Picture_WhenAStageDies_ShowsItDeadAndBackAgain() {
    const seen = await open('small');
    await seen.becomes('four stages are connected', () => document.querySelectorAll('.seat.at-work').length === 4);
    seen.run.kill(2, 'heard nothing for 10 s');
    seen.push();
    await seen.shows('.seat.away', 'lab-7');
    await seen.shows('.seat.away', 'heard 43 s ago');
    await seen.shows('#events li', 'stage 2 (lab-7) is away: heard nothing for 10 s');
    await seen.becomes('its links are cut', () => document.querySelectorAll('.link.cut').length === 2);
    seen.run.revive(2);
    seen.push();
    await seen.becomes('four stages are connected', () => document.querySelectorAll('.seat.at-work').length === 4);
    await seen.shows('#events li', 'lab-7 came back to stage 2');
    seen.run.empty.add(1);
    seen.push();
    await seen.shows('.seat.empty', 'empty seat');
    return seen;
  },

  async State_WhenTheCoordinatorIsUnreachable_GreysTheLastPicture() {
    const seen = await open('small');
    seen.run.state = 'unreachable';
    seen.push();
    await seen.shows('#trouble:not([hidden])', 'The coordinator does not answer');
    await seen.shows('#state', 'unreachable');
    await seen.becomes('the picture is grey', () => document.body.classList.contains('stale') &&
      document.querySelectorAll('.seat').length === 4);
    seen.run.state = 'running';
    seen.push();
    await seen.becomes('the picture is live', () => !document.body.classList.contains('stale') &&
      document.getElementById('trouble').hidden);
    return seen;
  },

  async Stream_WhenTheDashboardIsGone_TriesUntilItIsBack() {
    const seen = await open('small');
    await seen.shows('#events', 'every stage wrote step 400');
    seen.fake.breakOff();
    await seen.shows('#trouble:not([hidden])', 'The dashboard does not answer; trying');
    seen.run.event('note', 'happened meanwhile');
    seen.run.advance();
    seen.fake.fail = false;
    await seen.becomes('the trouble is over', () => document.getElementById('trouble').hidden);
    await seen.shows('#progress-text', 'step 458');
    await seen.shows('#events li', 'happened meanwhile');
    const count = await seen.page.$$eval('#events li', (rows) => rows.length);
    assert.equal(count, seen.run.events.length, 'events are missing or shown twice');
    return seen;
  },

  async Stream_WhenTooManyAreOpen_IsReplacedByAsking() {
    const seen = await open('small');
    seen.fake.breakOff();
    await seen.shows('#trouble:not([hidden])', 'does not answer');
    seen.run.advance();
    [seen.fake.full, seen.fake.fail] = [true, false];
    await seen.shows('#trouble:not([hidden])', 'too many streams are open');
    await seen.shows('#progress-text', 'step 458');
    seen.fake.full = false;
    await seen.becomes('the trouble is over', () => document.getElementById('trouble').hidden);
    return seen;
  },

  async Pause_WithTheToken_PausesAndResumes() {
    const seen = await open('small', { token: kToken });
    assert.equal(await seen.page.evaluate(() => location.href), seen.fake.url, 'the token is still in the address');
    await seen.becomes('the button is enabled', () => !document.getElementById('pause').disabled);
    await seen.page.click('#pause');
    await seen.shows('#state', 'paused');
    await seen.shows('#pause', 'Resume');
    await seen.shows('#said', 'paused after this step');
    await seen.shows('#announce', 'The run is paused');
    assert.ok(seen.run.paused);
    await seen.becomes('the button is enabled', () => !document.getElementById('pause').disabled);
    await seen.page.focus('#pause');
    await seen.page.keyboard.press('Enter');
    await seen.shows('#state', 'running');
    assert.ok(!seen.run.paused);
    await seen.page.reload();
    await seen.becomes('the token is kept', () => !document.getElementById('pause').disabled);
    return seen;
  },

  async Pause_WithoutTheToken_IsDisabledUntilOneIsEntered() {
    const seen = await open('small');
    assert.ok(await seen.page.$eval('#pause', (button) => button.disabled));
    await seen.page.click('#enter-token');
    await seen.page.type('#token', kToken);
    await seen.page.keyboard.press('Enter');
    await seen.becomes('the button is enabled', () => !document.getElementById('pause').disabled);
    return seen;
  },

  async Page_WhenTheServerWantsAToken_AsksForIt() {
    const seen = await open('small', { locked: true });
    for (const text of ['wrong', kToken]) {
      await seen.becomes('the form is open', () => document.getElementById('token-dialog').open);
      await seen.page.type('#token', text);
      await seen.page.keyboard.press('Enter');
    }
    await seen.shows('#progress-text', 'step 457');
    await seen.becomes('the form is closed', () => !document.getElementById('token-dialog').open);
    return seen;
  },

  async History_WhenZoomed_AsksForTheChosenSteps() {
    const seen = await open('small');
    await curvesReach(seen, '457');
    await seen.page.type('#from', '100');
    await seen.page.type('#to', '200');
    await seen.page.keyboard.press('Enter');
    await curvesReach(seen, '200');
    assert.ok(seen.fake.requests.some((line) => /from=100&to=200/.test(line)));
    await seen.page.click('#whole');
    await curvesReach(seen, '457');
    const over = await seen.page.$('.wide-figure .u-over');
    await over.scrollIntoView();
    const area = await over.boundingBox();
    await seen.page.mouse.move(area.x + area.width / 4, area.y + 50);
    await seen.page.mouse.down();
    await seen.page.mouse.move(area.x + area.width / 2, area.y + 60, { steps: 5 });
    await seen.page.mouse.up();
    await seen.becomes('the form holds the chosen steps', () => Number(document.getElementById('from').value) > 80 &&
      Number(document.getElementById('to').value) < 260 && document.getElementById('to').value !== '');
    return seen;
  },

  async Keyboard_ReachesEveryControl_WithVisibleFocus() {
    const seen = await open('basis', { token: kToken });
    await curvesReach(seen, '457');
    const wanted = new Set(['pause', 'from', 'to', 'Log scale', 'As a table', 'Config']);
    for (let i = 0; i < 30 && wanted.size; ++i) {
      await seen.page.keyboard.press('Tab');
      const [name, outline] = await seen.page.evaluate(() => [document.activeElement.id ||
        document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle]);
      if (wanted.delete(name)) assert.notEqual(outline, 'none', `${name} shows no focus`);
      if (name === 'Log scale') await seen.page.keyboard.press('Space');
    }
    assert.deepEqual([...wanted], [], 'the keyboard does not reach these');
    await seen.becomes('the scale is logarithmic', () => document.querySelector('.toggle').ariaPressed === 'true');
    return seen;
  },

  async BasisPlots_WithoutMoves_AreHidden() {
    const shown = (seen) => seen.page.$$eval('.figure:not([hidden]) h3', (heads) => heads.map((h) => h.textContent));
    const without = await open('small');
    await curvesReach(without, '457');
    assert.ok(!(await shown(without)).some((title) => title.startsWith('Basis')));
    await without.close();
    const seen = await open('basis');
    await curvesReach(seen, '457');
    assert.equal((await shown(seen)).filter((title) => title.startsWith('Basis')).length, 3);
    return seen;
  },

  async HostileText_IsShownAsText() {
    const seen = await open('small', { prepare: (run) => {
      run.names[1] = kHostile;
      run.spares.push(kHostile, 'x'.repeat(5000));
      run.why = kHostile;
      run.event(kHostile.repeat(3), kHostile);
    }, width: 360 });
    await seen.shows('#events li', kHostile);
    await seen.shows('#why', kHostile);
    await seen.shows('.spares', '<img src=x');
    await seen.page.click('#pipeline summary');
    await seen.shows('#pipeline table', kHostile);
    assert.equal(await seen.page.$$eval('img, script:not([src])', (nodes) => nodes.length), 0);
    assert.equal(await seen.page.evaluate(() => window.hacked), undefined);
    await noSideways(seen);
    return seen;
  },

  async Phone_HasNoSidewaysScrolling() {
    for (const scenario of ['dead', 'spares', 'totals', 'fresh']) {
      const seen = await open(scenario, { width: 360 });
      if (scenario !== 'fresh') await curvesReach(seen, '457');
      await noSideways(seen);
      await seen.close();
    }
    const seen = await open('crowd', { width: 360 });
    await curvesReach(seen, '998,000');
    await noSideways(seen);
    return seen;
  },

  async DarkScheme_IsDarkWithLightText() {
    const seen = await open('small', { scheme: 'dark' });
    await curvesReach(seen, '457');
    assert.ok(await brightness(seen.page, 'backgroundColor') < 0.2);
    assert.ok(await brightness(seen.page, 'color') > 0.7);
    await seen.page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
    assert.ok(await brightness(seen.page, 'backgroundColor') > 0.8);
    return seen;
  },

  async Status_Of200Workers_IsDrawn() {
    const seen = await open('crowd');
    await curvesReach(seen, '998,000');
    assert.equal(await seen.page.$$eval('.seat', (seats) => seats.length), 200);
    await seen.shows('.troubles', 'Stage 17');
    const drawn = [];
    const before = await seen.page.metrics();
    for (let step = 998_001; step <= 998_020; ++step) {
      seen.run.advance();
      seen.push();
      await seen.shows('#progress-text', `step ${step.toLocaleString('en-US')} `);
      drawn.push(await seen.page.evaluate(() => performance.getEntriesByName('status')[0].duration));
    }
    const after = await seen.page.metrics();
    const spent = ({ LayoutDuration, RecalcStyleDuration }) => LayoutDuration + RecalcStyleDuration;
    const styling = (spent(after) - spent(before)) * 1000 / 20;
    drawn.sort((a, b) => a - b);
    console.log(`# a status of 200 workers: script ${drawn[10].toFixed(1)} ms (median of 20; longest ` +
      `${drawn[19].toFixed(1)} ms), style and layout ${styling.toFixed(1)} ms`);
    return seen;
  },
};

let failure = '';
for (const [name, test] of Object.entries(tests)) {
  if (!name.includes(process.argv[2] ?? '')) continue;
  try {
    const seen = await test();
    await seen.close();
    assert.deepEqual(seen.faults, [], 'the browser complains');
    console.log(`ok ${name}`);
  } catch (error) {
    failure = `not ok ${name}: ${error.message.replace(/\s+/g, ' ')}`;
    break;
  }
}
await browser.close();
if (failure) console.error(failure);
process.exit(failure ? 1 : 0);
