// The dashboard page: keeps header, numbers, picture, curves and events current with what the server streams.
import './style.css';
import { Follower, get, hasToken, post, Refusal, takeTokenFromAddress } from './api';
import type { Event, Run, Status, Steps } from './api';
import { Events } from './events';
import { Pipeline } from './pipeline';
import { Plots } from './plots';
import { Timeline } from './timeline';
import { byId, duration, fixed, html, integer, kUnknown, number, percent, setText } from './util';

const kStepsEveryMs = 1000;

let run: Run | null = null;
let status: Status | null = null;
let range: { from: number | null; to: number | null } = { from: null, to: null };

const pipeline = new Pipeline(byId('pipeline'));
const timeline = new Timeline(byId('timeline'));
const events = new Events(byId('events'));
const plots = new Plots(byId('plots'), (from, to) => showSteps(from, to), () => showSteps(null, null));
const pauseButton = byId<HTMLButtonElement>('pause');
const tokenDialog = byId<HTMLDialogElement>('token-dialog');
const tokenInput = byId<HTMLInputElement>('token');
const fromInput = byId<HTMLInputElement>('from');
const toInput = byId<HTMLInputElement>('to');

// The numbers of now: label, value, and a line below it.
const kTiles: [string, (now: Status) => string, (now: Status) => string][] = [
  ['Loss', (now) => fixed(now.loss, 4), (now) => `validation ${fixed(now.validation_loss, 4)}`],
  ['Tokens per second', (now) => integer(now.tokens_per_s),
    () => run ? `${integer(run.tokens_per_step)} tokens a step` : ''],
  ['Bytes per token', (now) => number(now.bytes_per_token),
    (now) => now.compression === null ? '' : `${number(Math.round(now.compression * 10) / 10)}× less than fp32`],
  ['Waiting share', (now) => percent(now.wait_share), () => 'of the stages’ time'],
  ['Checkpoint', (now) => now.manifest_step === null ? kUnknown : `step ${integer(now.manifest_step)}`,
    (now) => `epoch ${integer(now.epoch)}`],
];
const tiles = kTiles.map(([label, value, below]) => {
  const parts = [html('span', 'label', label), html('span', 'value', kUnknown), html('span', 'below')] as const;
  byId('tiles').append(html('div', 'tile', ...parts));
  return { value, below, parts };
});

// ---- what is drawn from a status ----

function stateWord(now: Status): string {
  return now.state === 'running' && now.paused ? 'paused' : now.state;
}

function drawHeader(now: Status): void {
  const word = stateWord(now);
  const badge = byId('state');
  if (badge.dataset.state !== word) {
    badge.dataset.state = word;
    setText(badge, word);
    setText(byId('announce'), `The run is ${word}. ${now.why}`);
  }
  const done = now.steps ? now.step / now.steps : 0;
  setText(byId('progress-text'), `step ${integer(now.step)} of ${integer(now.steps)}`);
  setText(byId('eta'), word === 'running' && now.eta_s !== null ? `${duration(now.eta_s)} left` : '');
  byId<HTMLProgressElement>('progress').value = done;
  const phase = now.phase && word === 'running' ? `${now.phase}: ` : '';
  setText(byId('why'), now.why ? phase + now.why : now.phase);
  document.title = `${integer(now.step)}/${integer(now.steps)} ${word} · ${run?.name ?? ''} · thinpipe`;
}

function drawPauseButton(): void {
  const running = status?.state === 'running';
  setText(pauseButton, status?.paused ? 'Resume' : 'Pause');
  pauseButton.disabled = !running || !hasToken() || pauseButton.dataset.busy === 'yes';
  pauseButton.title = !hasToken() ? 'Needs the token of the run' : running ? '' : 'Only while the run is running';
  byId('enter-token').hidden = hasToken();
}

function draw(): void {
  scheduled = false;
  if (!run || !status) return;
  const start = performance.now();
  const now = status;
  document.body.classList.toggle('stale', now.state === 'unreachable' || lost);
  drawHeader(now);
  drawPauseButton();
  for (const { value, below, parts } of tiles) {
    setText(parts[1], value(now));
    setText(parts[2], below(now));
  }
  pipeline.update(run, now);
  timeline.update(now.traced.length > 0 ? now.traced : now.stages, now.traced_step || now.step);
  drawTrouble();
  performance.clearMeasures('status');
  performance.measure('status', { start });
}

let scheduled = false;
function drawSoon(): void {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

// ---- what is wrong ----

let lost = false;
let lostWhy = '';

function drawTrouble(): void {
  const text = lost ? (lostWhy ? `No live view: ${lostWhy}; trying again` : 'The dashboard does not answer; trying') :
    status?.state === 'unreachable' ? 'The coordinator does not answer. The page shows what was last known.' : '';
  byId('trouble').hidden = !text;
  setText(byId('trouble'), text);
}

// ---- the history ----

let shownTo = -1;
let every = 1;
let asked = 0;      // counts requests, so that a late answer does not replace a newer one
let waiting = false;  // for an answer or for the next time it may ask

function showSteps(from: number | null, to: number | null): void {
  if (from === range.from && to === range.to) return;
  range = { from, to };
  fromInput.value = from === null ? '' : String(from);
  toInput.value = to === null ? '' : String(to);
  byId<HTMLButtonElement>('whole').disabled = from === null && to === null;
  void askSteps();
}

async function askSteps(): Promise<void> {
  const mine = ++asked;
  const query = new URLSearchParams({ points: String(plots.points()) });
  if (range.from !== null) query.set('from', String(range.from));
  if (range.to !== null) query.set('to', String(range.to));
  try {
    const steps = await get<Steps>(`steps?${query}`);
    if (mine !== asked || !run) return;
    every = Math.max(1, steps.every);
    shownTo = steps.to;
    plots.show(steps, run);
  } catch (error) {
    if (error instanceof Refusal && error.status === 400) say(error.message);
  }
}

// Asks again when the curves would change: not while a step is a small part of one point, nor for steps not shown.
function followSteps(): void {
  if (waiting || !run || !status || document.hidden) return;
  const news = status.step < shownTo || status.step >= shownTo + Math.max(1, every / 10);
  if (!news || (range.to !== null && shownTo >= range.to)) return;
  waiting = true;
  const start = performance.now();
  void askSteps().finally(() => window.setTimeout(() => {
    waiting = false;
    followSteps();
  }, Math.max(0, kStepsEveryMs - (performance.now() - start))));
}

byId('range').addEventListener('submit', (event) => {
  event.preventDefault();
  const read = (input: HTMLInputElement) => {
    const text = input.value.replace(/[,\s]/g, '');
    return /^\d+$/.test(text) ? Number(text) : null;
  };
  const [from, to] = [read(fromInput), read(toInput)];
  if (from !== null && to !== null && from >= to) return say('the first step must be before the last');
  showSteps(from, to);
});
byId('whole').addEventListener('click', () => showSteps(null, null));
document.addEventListener('visibilitychange', followSteps);

// ---- token, pause and resume ----

let refused = false;

function say(text: string): void {
  setText(byId('said'), text);
}

function askToken(why: string): void {
  setText(byId('token-why'), why);
  if (!tokenDialog.open) tokenDialog.showModal();
  tokenInput.focus();
}

byId('enter-token').addEventListener('click', () => askToken('The token is needed to pause and resume.'));
byId('token-cancel').addEventListener('click', () => tokenDialog.close());
byId('token-form').addEventListener('submit', () => {
  say('');
  follower.useToken(tokenInput.value.trim());
  tokenInput.value = '';
  drawPauseButton();
});

pauseButton.addEventListener('click', async () => {
  const verb = status?.paused ? 'resume' : 'pause';
  pauseButton.dataset.busy = 'yes';
  drawPauseButton();
  try {
    say(await post(verb));
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) askToken('The token was refused.');
    else say(error instanceof Refusal ? error.message : `could not ${verb}: the dashboard does not answer`);
  }
  pauseButton.dataset.busy = '';
  drawPauseButton();
  if (!pauseButton.disabled && document.activeElement === document.body) pauseButton.focus();
});

// ---- the connection ----

const follower = new Follower({
  run(fresh: Run) {
    if (run && run.name !== fresh.name) events.clear();
    run = fresh;
    setText(byId('name'), fresh.name);
    const many = (count: number, word: string) => `${integer(count)} ${word}${count === 1 ? '' : 's'}`;
    setText(byId('facts'), [fresh.model, `width ${fresh.d}`, many(fresh.blocks, 'block'), many(fresh.stages, 'stage'),
      `rank ${fresh.rank}`, fresh.pack, fresh.corpus].join(' · '));
    setText(byId('config'), fresh.config);
  },
  status(fresh: Status) {
    status = fresh;
    drawSoon();
    followSteps();
  },
  events(fresh: Event[]) { events.add(fresh); },
  connected() {
    lost = false;
    if (tokenDialog.open) tokenDialog.close();
    drawSoon();
    drawTrouble();
  },
  lost(why: string) {
    lost = true;
    lostWhy = why;
    document.body.classList.add('stale');
    drawTrouble();
  },
  tokenRefused() {
    say('The token was refused.');
    refused = true;
    drawPauseButton();
  },
  tokenNeeded() {
    setText(byId('state'), 'locked');
    askToken(refused ? 'The token was refused.' : 'To see this run from another machine, enter its token.');
    refused = false;
  },
});

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  timeline.redraw();
  plots.recolour();
});
window.addEventListener('hashchange', () => {
  if (takeTokenFromAddress()) follower.useToken(sessionStorage.getItem('thinpipe-token') ?? '');
});
takeTokenFromAddress();
drawPauseButton();
void follower.follow();
