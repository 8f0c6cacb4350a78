// A made-up run behind the dashboard's API (docs/api.md), for developing the page and for its test.
//   node dev/fake_server.mjs [SCENARIO] [--port N] [--locked]
// Scenarios: small (4 stages), crowd (200 stages, a million steps), spares (24 stages, 176 machines that wait), dead,
// paused, basis, totals (no single passes), over, fresh, unreachable. Steps pass by themselves.
// The token is "fake-token". --locked behaves like an address that is not loopback: it shows nothing without the token.
import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export const kToken = 'fake-token';
const kBuilt = new URL('../built/', import.meta.url);
const kFiles = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/app.js': ['app.js', 'text/javascript; charset=utf-8'],
  '/app.css': ['app.css', 'text/css; charset=utf-8'],
};
const kHeaders = {
  'Content-Security-Policy': "default-src 'self'", 'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer', 'Cache-Control': 'no-store',
};

// A number in [0, 1) that depends only on its arguments.
function noise(a, b = 0) {
  let x = Math.imul(a + 1, 0x9e3779b1) ^ Math.imul(b + 7, 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d);
  x = Math.imul(x ^ (x >>> 12), 0x297a2d39);
  return ((x ^ (x >>> 15)) >>> 0) / 2 ** 32;
}

const kNames = ['attic', 'basement', 'lab-7', 'rented-a', 'rented-b', 'laptop', 'workshop', 'garage'];

export class FakeRun {
  constructor(scenario = 'small') {
    const crowd = scenario === 'crowd';
    const spares = scenario === 'spares';
    this.count = crowd ? 200 : spares ? 24 : scenario === 'basis' ? 6 : 4;
    this.steps = crowd ? 1_000_000 : 1200;
    this.step = crowd ? 998_000 : scenario === 'fresh' ? 0 : 457;
    this.state = scenario === 'fresh' ? 'not started' : 'running';
    this.why = 'all stages are at work';
    this.paused = false;
    this.epoch = 3;
    this.passes = scenario !== 'totals';
    this.basis = scenario === 'basis' || crowd;
    this.away = new Set();
    this.empty = new Set();
    this.events = [];
    this.names = Array.from({ length: this.count }, (_, i) => kNames[i] ?? `node-${i}`);
    this.spares = spares ? Array.from({ length: 176 }, (_, i) => `spare-${i}`) : crowd ? [] : ['cupboard'];
    this.event('start', `the run began with ${this.count} stages`);
    this.event('epoch', 'epoch 2: rented-b took stage 3');
    this.event('checkpoint', 'every stage wrote step 400');
    if (scenario === 'dead') this.kill(2, 'heard nothing for 10 s');
    if (scenario === 'paused') this.pause();
    if (scenario === 'over') [this.state, this.step, this.why] = ['complete', 1200, 'all steps are done'];
    if (scenario === 'unreachable') [this.state, this.why] = ['unreachable', 'the coordinator does not answer'];
    if (crowd) {
      this.kill(17, 'its connection was reset');
      this.empty.add(143);
    }
  }

  event(kind, text) {
    const number = this.events.length + 1;
    this.events.push({ number, time: new Date().toISOString().replace(/\.\d+/, ''), kind, text });
  }

  kill(stage, reason) {
    this.away.add(stage);
    this.why = `stage ${stage} is away: ${reason}`;
    this.event('away', `stage ${stage} (${this.names[stage]}) is away: ${reason}`);
  }

  revive(stage) {
    this.away.delete(stage);
    this.why = 'all stages are at work';
    this.event('epoch', `epoch ${++this.epoch}: ${this.names[stage]} came back to stage ${stage}`);
  }

  pause() {
    this.paused = true;
    this.why = 'paused by the dashboard';
    this.event('pause', 'paused by the dashboard');
  }

  resume() {
    this.paused = false;
    this.why = 'all stages are at work';
    this.event('resume', 'resumed by the dashboard');
  }

  advance() {
    if (this.state !== 'running' || this.paused || this.away.size && this.count < 100) return;
    if (this.step < this.steps) ++this.step;
    if (this.step % 50 === 0) this.event('checkpoint', `every stage wrote step ${this.step}`);
  }

  loss(step) { return 2.1 + 5.5 / (1 + step / (this.steps / 12)) ** 0.8 + 0.12 * (noise(step) - 0.5); }

  describe() {
    const cuts = Array.from({ length: this.count }, (_, i) => i < this.count / 2 ? 2 : 1);
    return {
      name: '2026-11-18-10-00-00', folder: 'runs/2026-11-18-10-00-00', model: 'subspace', d: 320,
      blocks: cuts.reduce((a, b) => a + b), stages: this.count, rank: 8, pack: 'int8', cuts, steps: this.steps,
      tokens_per_step: 4096, corpus: 'kjv', fp32_bytes_per_token: 2560,
      config: '[model]\nkind = "subspace"\nd = 320\n\n[boundary]\nrank = 8\npack = "int8"\n',
    };
  }

  stage(index) {
    const microbatches = this.count > 100 ? 16 : 8;
    const forward = 0.045 + 0.012 * noise(index), backward = 2 * forward, lag = this.count > 100 ? 0.006 : 0.05;
    const passes = [];
    let at = index * lag;
    const work = (kind, i, length) => {
      const end = at + length * (0.95 + 0.1 * noise(this.step * 64 + i, index));
      passes.push([kind, i, at, end]);
      at = end + lag * 0.3 * noise(i, index + this.step);
    };
    const ahead = Math.min(microbatches, this.count > 100 ? 6 : this.count - index);
    for (let i = 0; i < ahead; ++i) work('f', i, forward);
    at = Math.max(at, (2 * this.count - index) * lag * 1.6);
    for (let i = 0; i < microbatches; ++i) {
      work('b', i, backward);
      if (i + ahead < microbatches) work('f', i + ahead, forward);
    }
    const sum = (kind) => passes.reduce((total, pass) => total + (pass[0] === kind ? pass[3] - pass[2] : 0), 0);
    const times = { forward_s: sum('f'), backward_s: sum('b'), update_s: 0.06 };
    const total_s = at + 0.12;
    const wait_s = total_s - times.forward_s - times.backward_s - times.update_s;
    return { total_s, ...times, wait_s, ...(this.passes ? { passes } : {}) };
  }

  worker(index) {
    const connected = !this.away.has(index);
    return {
      peer: this.names[index], stage: index, connected, address: `203.0.113.${index % 250 + 1}:4711`,
      heard_s_ago: connected ? Number((noise(this.step, index) * 0.9).toFixed(2)) : 43,
    };
  }

  waiting() {
    return this.spares.map((peer) => (
      { peer, stage: -1, connected: true, address: '198.51.100.7:5000', heard_s_ago: 1 }));
  }

  link(boundary) {
    const up = 8e7 / (1 + boundary % 4);
    return {
      boundary, way: boundary % 3 === 1 ? 'relay' : 'direct', round_trip_s: 0.012 + 0.05 * noise(boundary),
      up_bits_per_s: up, down_bits_per_s: boundary % 2 ? 2 * up : up,
      use: boundary % 37 === 5 ? 0.93 : 0.02 + 0.4 * noise(boundary, 3),
    };
  }

  status() {
    const all = [...Array(this.count).keys()];
    const begun = this.step > 0;
    const live = this.state === 'running' || this.state === 'unreachable';
    return {
      state: this.state, phase: this.paused ? 'paused' : 'stepping', why: this.why, step: this.step, steps: this.steps,
      epoch: this.epoch, paused: this.paused, loss: begun ? this.loss(this.step) : null,
      validation_loss: begun ? this.loss(this.step) + 0.06 : null,
      manifest_step: begun ? this.step - this.step % 50 : null, tokens_per_s: begun ? 2104 : null,
      eta_s: begun ? (this.steps - this.step) * 1.95 : null, bytes_per_token: begun ? 22.1 : null,
      compression: begun ? 115.8 : null, wait_share: begun ? 0.31 : null,
      workers: live ? [...all.filter((i) => !this.empty.has(i)).map((i) => this.worker(i)), ...this.waiting()] : [],
      links: live ? all.slice(1).map((i) => this.link(i - 1)) : [],
      stages: begun ? all.map((i) => ({ ...this.stage(i), passes: undefined })) : [],
      traced_step: begun ? this.step - (this.step - 1) % 10 : 0, traced: begun ? all.map((i) => this.stage(i)) : [],
    };
  }

  history(from, to, points) {
    from = Math.max(1, from);
    to = Math.min(this.step, to);
    const every = Math.max(1, Math.ceil((to - from + 1) / points));
    const step = [];
    for (let last = from + every - 1; last - every + 1 <= to; last += every) step.push(Math.min(last, to));
    const each = (f) => step.map(f);
    const spread = every > 1 ? 0.07 : 0;
    const gap = Math.max(20, Math.ceil((to - from) / 60));
    const coarse = [];
    for (let at = from + gap; at <= to; at += gap) coarse.push(at);
    const moves = this.basis ? coarse : [];
    return {
      from, to, every, step, loss: each((s) => this.loss(s)),
      loss_min: each((s) => this.loss(s) - spread * (1 + noise(s, 1))),
      loss_max: each((s) => this.loss(s) + spread * (1 + noise(s, 2))), grad_norm: each((s) => 0.6 + noise(s, 3) * 0.5),
      lr: each((s) => 0.002 * Math.min(1, s / 100) * (1 - 0.9 * s / this.steps)),
      tokens_per_s: each((s) => 2000 + 180 * noise(s, 4)), bytes_per_token: each((s) => 22.1 + 0.2 * noise(s, 5)),
      wait_share: each((s) => 0.28 + 0.06 * noise(s, 6)),
      validation: { step: coarse, loss: coarse.map((s) => this.loss(s) + 0.06) },
      basis: {
        step: moves, energy_inside: moves.map((s) => 0.95 + 0.04 * noise(s, 7)),
        largest_angle: moves.map((s) => 0.3 / (1 + 5 * s / this.steps) + 0.02 * noise(s, 8)),
        dropped_share: moves.map((s) => 0.002 * noise(s, 9)),
      },
    };
  }
}

// Serves `run` on a free port of loopback, or on `port`. push() sends the run's state to all streams. fail makes every
// request break off, as if the server were gone; full refuses streams.
export async function serve(run, { port = 0, locked = false } = {}) {
  const streams = new Set();
  const fake = { run, fail: false, full: false, requests: [], url: '' };
  const server = createServer((request, response) => {
    if (fake.fail) return request.socket.destroy();
    const url = new URL(request.url, 'http://fake');
    fake.requests.push(request.method + ' ' + request.url);
    const answer = (status, body) => {
      response.writeHead(status, { ...kHeaders, 'Content-Type': 'application/json' });
      response.end(JSON.stringify(body));
    };
    const file = kFiles[url.pathname];
    if (file) {
      response.writeHead(200, { ...kHeaders, 'Content-Type': file[1] });
      return response.end(readFileSync(new URL(file[0], kBuilt)));
    }
    if (url.pathname === '/favicon.ico') return response.writeHead(204, kHeaders).end();
    if (!url.pathname.startsWith('/api/v1/')) return answer(404, { error: 'no such page' });
    const said = request.headers.authorization;
    const known = said === `Bearer ${kToken}`;
    if (said && !known || (locked || request.method === 'POST') && !known) {
      return answer(401, { error: 'no token, or a wrong one' });
    }
    const parameter = (name, otherwise) => Number(url.searchParams.get(name) ?? otherwise);
    switch (request.method + ' ' + url.pathname.slice(8)) {
      case 'GET run': return answer(200, run.describe());
      case 'GET status': return answer(200, run.status());
      case 'GET steps':
        return answer(200, run.history(parameter('from', 0), parameter('to', 1e9), parameter('points', 500)));
      case 'GET events': return answer(200, run.events.filter((e) => e.number > parameter('after', 0)).slice(-200));
      case 'POST pause': run.pause(); break;
      case 'POST resume': run.resume(); break;
      case 'GET stream': {
        if (fake.full) return answer(503, { error: 'too many streams are open' });
        response.writeHead(200, { ...kHeaders, 'Content-Type': 'text/event-stream' });
        const stream = { response, sent: run.events.length };
        streams.add(stream);
        response.on('close', () => streams.delete(stream));
        return send(stream);
      }
      default: return answer(404, { error: 'no such request' });
    }
    answer(200, { said: run.paused ? 'paused after this step' : 'resumed' });
    fake.push();
  });
  const send = (stream) => {
    const fresh = run.events.slice(stream.sent);
    stream.sent = run.events.length;
    if (fresh.length) stream.response.write(`event: events\ndata: ${JSON.stringify(fresh)}\n\n`);
    stream.response.write(`event: status\ndata: ${JSON.stringify(run.status())}\n\n`);
  };
  fake.push = () => streams.forEach(send);
  fake.breakOff = () => {
    fake.fail = true;
    server.closeAllConnections();
  };
  fake.close = () => new Promise((done) => {
    server.close(done);
    server.closeAllConnections();
  });
  await new Promise((done) => server.listen(port, '127.0.0.1', done));
  fake.url = `http://127.0.0.1:${server.address().port}/`;
  return fake;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const words = process.argv.slice(2);
  const port = words.includes('--port') ? Number(words[words.indexOf('--port') + 1]) : 0;
  const run = new FakeRun(words[0]?.startsWith('--') ? 'small' : words[0]);
  const fake = await serve(run, { port, locked: words.includes('--locked') });
  console.log(`${fake.url}#${kToken}`);
  setInterval(() => {
    run.advance();
    fake.push();
  }, 500);
}
