// The dashboard's API (docs/api.md): its types, the token, requests, and the stream that keeps the page current.

type Value = number | null;

export interface Run {
  name: string; folder: string; model: string; d: number; blocks: number; stages: number; rank: number; pack: string;
  cuts: number[]; steps: number; tokens_per_step: number; corpus: string; fp32_bytes_per_token: Value; config: string;
}

export interface Worker {
  peer: string; stage: number; connected: boolean; address: string; heard_s_ago: Value;
}

export interface Link {
  boundary: number; way: string; round_trip_s: Value; up_bits_per_s: Value; down_bits_per_s: Value; use: Value;
}

export interface Stage {
  total_s: Value; forward_s: Value; backward_s: Value; update_s: Value; wait_s: Value;
  passes?: ['f' | 'b', number, number, number][];
}

export interface Status {
  state: 'running' | 'complete' | 'failed' | 'interrupted' | 'unreachable' | 'not started';
  phase: string; why: string; step: number; steps: number; epoch: number; paused: boolean;
  loss: Value; validation_loss: Value; manifest_step: Value; tokens_per_s: Value; eta_s: Value;
  bytes_per_token: Value; compression: Value; wait_share: Value;
  workers: Worker[]; links: Link[]; stages: Stage[];
  traced_step: number; traced: Stage[];
}

export interface Steps {
  from: number; to: number; every: number;
  step: number[]; loss: Value[]; loss_min: Value[]; loss_max: Value[]; grad_norm: Value[]; lr: Value[];
  tokens_per_s: Value[]; bytes_per_token: Value[]; wait_share: Value[];
  validation: { step: number[]; loss: Value[] };
  basis: { step: number[]; energy_inside: Value[]; largest_angle: Value[]; dropped_share: Value[] };
}

export interface Event {
  number: number; time: string; kind: string; text: string;
}

// The server answered, but not with what was asked for.
export class Refusal extends Error {
  constructor(readonly status: number, text: string) { super(text); }
}

const kTokenKey = 'thinpipe-token';
let token = sessionStorage.getItem(kTokenKey) ?? '';

export const hasToken = (): boolean => token !== '';

export function setToken(text: string): void {
  token = /^[!-~]+$/.test(text) ? text : '';
  if (token) sessionStorage.setItem(kTokenKey, token);
  else sessionStorage.removeItem(kTokenKey);
}

// Takes the token out of the address bar, so that it is neither seen nor kept in the browser's history.
export function takeTokenFromAddress(): boolean {
  const text = location.hash.slice(1);
  if (!text) return false;
  history.replaceState(null, '', location.pathname + location.search);
  setToken(text);
  return true;
}

async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers: HeadersInit = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(`api/v1/${path}`, { ...init, headers, cache: 'no-store' });
  if (response.ok) return response;
  const said = await response.json().catch(() => null) as { error?: unknown } | null;
  throw new Refusal(response.status, typeof said?.error === 'string' ? said.error : `status ${response.status}`);
}

export async function get<T>(path: string): Promise<T> {
  return await (await request(path)).json() as T;
}

export async function post(path: 'pause' | 'resume'): Promise<string> {
  return (await (await request(path, { method: 'POST' })).json() as { said: string }).said;
}

export interface Listener {
  run(run: Run): void;
  status(status: Status): void;
  events(events: Event[]): void;
  connected(): void;
  lost(why: string): void;
  tokenRefused(): void;  // go on without it
  tokenNeeded(): void;   // nothing more until useToken()
}

const kSilenceMs = 40_000;  // the server says something every 15 seconds
const kFirstWaitMs = 500;
const kLongestWaitMs = 10_000;

// Follows a run for as long as the page is open; connects again whenever the stream ends.
export class Follower {
  private abort = new AbortController();
  private wake: () => void = () => {};
  private failures = 0;
  private connecting = false;  // or reading; otherwise it sleeps
  private restart = false;
  private lastEvent = 0;

  constructor(private readonly listener: Listener) {}

  async follow(): Promise<never> {
    for (;;) {
      this.abort = new AbortController();
      this.connecting = true;
      const why = await this.once().catch((error: unknown) => error);
      this.connecting = false;
      this.abort.abort();
      if (this.restart) {
        this.restart = false;
        continue;
      }
      if (why instanceof Refusal && why.status === 401) {
        if (hasToken()) {
          setToken('');
          this.listener.tokenRefused();
        } else {
          this.listener.tokenNeeded();
          await this.sleep(null);
        }
        continue;
      }
      this.listener.lost(why instanceof Refusal ? why.message : '');
      await this.sleep(Math.min(kLongestWaitMs, kFirstWaitMs * 2 ** this.failures++) * (0.75 + Math.random() / 4));
    }
  }

  useToken(text: string): void {
    setToken(text);
    this.failures = 0;
    this.restart = this.connecting;
    this.abort.abort();
    this.wake();
  }

  private async once(): Promise<void> {
    this.listener.run(await get<Run>('run'));
    const stream = await request('stream', { signal: this.abort.signal }).catch(async (error: unknown) => {
      if (error instanceof Refusal && error.status === 503) {  // too many streams: look once, and try again later
        this.listener.status(await get<Status>('status'));
        await this.catchUp();
      }
      throw error;
    });
    this.failures = 0;
    this.listener.connected();
    await this.catchUp();  // before the stream's own events, so that those it lacks are not taken for old ones
    await this.read(stream);
  }

  private async catchUp(): Promise<void> {
    this.pass(await get<Event[]>(`events?after=${this.lastEvent}`));
  }

  // Events come from the stream and from catchUp(), so some come twice.
  private pass(events: Event[]): void {
    const fresh = events.filter((event) => event.number > this.lastEvent).sort((a, b) => a.number - b.number);
    const last = fresh.at(-1);
    if (!last) return;
    this.lastEvent = last.number;
    this.listener.events(fresh);
  }

  private async read(response: Response): Promise<void> {
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    const abort = this.abort;
    let silence = 0;
    let rest = '';
    try {
      for (;;) {
        silence = window.setTimeout(() => abort.abort(), kSilenceMs);
        const { done, value } = await reader.read();
        clearTimeout(silence);
        if (done) return;
        const messages = (rest + value.replaceAll('\r', '')).split('\n\n');
        rest = messages.pop() ?? '';
        for (const message of messages) this.take(message);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  private take(message: string): void {
    let kind = '';
    const data: string[] = [];
    for (const line of message.split('\n')) {
      const [, field, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
      if (field === 'event') kind = value!;
      if (field === 'data') data.push(value!);
    }
    if (kind === 'status') this.listener.status(JSON.parse(data.join('\n')) as Status);
    if (kind === 'events') this.pass(JSON.parse(data.join('\n')) as Event[]);
  }

  private sleep(ms: number | null): Promise<void> {
    return new Promise((resolve) => {
      this.wake = resolve;
      if (ms !== null) window.setTimeout(resolve, ms);
    });
  }
}
