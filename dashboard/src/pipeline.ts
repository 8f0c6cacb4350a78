// The pipeline as a picture: stages in their order with the machines that hold them, the links between them, and the
// machines that wait for a seat. Up to kLargeStages stages are boxes with text; more are small numbered cells. Every
// other row runs from right to left, so that neighbours stay neighbours.
import type { Link, Run, Status, Worker } from './api';
import { duration, html, integer, kUnknown, percent, rate, setAttribute, setText, shorten, svg } from './util';

const kLargeStages = 24;
const kSparesShown = 24;
const kTroublesShown = 8;

interface Seat {
  kind: 'at-work' | 'away' | 'empty' | 'over';
  name: string;
  address: string;
  note: string;
  computes: number | null;
  waits: number | null;
}

interface Place { x: number; y: number; w: number; h: number }
interface Layout { large: boolean; down: boolean[]; places: Place[]; height: number }

// Where `count` stages go in `width` pixels. down[i]: stage i + 1 is below stage i instead of beside it.
function layOut(count: number, width: number): Layout {
  const large = count <= kLargeStages;
  const [least, most, h, closest, widest, drop] = large ? [166, 300, 92, 112, 260, 52] : [28, 28, 26, 8, 14, 10];
  const fit = Math.max(1, Math.floor((width + closest) / (least + closest)));
  const columns = large ? Math.ceil(count / Math.ceil(count / fit)) : fit;
  const w = columns === 1 && large ? width : Math.min(most, Math.floor((width + closest) / columns) - closest);
  const gap = Math.max(closest, Math.min(widest, Math.floor((width - columns * w) / Math.max(1, columns - 1))));
  const places: Place[] = [];
  const down: boolean[] = [];
  for (let i = 0; i < count; ++i) {
    const row = Math.floor(i / columns);
    const along = row % 2 ? columns - 1 - i % columns : i % columns;
    places.push({ x: along * (w + gap), y: row * (h + drop), w, h });
    down.push((i + 1) % columns === 0);
  }
  return { large, down, places, height: Math.ceil(count / columns) * (h + drop) - drop };
}

function findSeats(run: Run, status: Status): Seat[] {
  const holders: Worker[][] = Array.from({ length: run.stages }, () => []);
  for (const worker of status.workers) holders[worker.stage]?.push(worker);
  const live = status.state === 'running' || status.state === 'unreachable' || status.state === 'not started';
  return holders.map((workers, index) => {
    const worker = workers.find((one) => one.connected) ?? workers[0];
    const stage = status.stages[index];
    const total = stage?.total_s || null;
    const seat: Seat = { kind: 'over', name: '', address: '', note: '', computes: null, waits: null };
    if (stage && total !== null) {
      seat.computes = ((stage.forward_s ?? 0) + (stage.backward_s ?? 0) + (stage.update_s ?? 0)) / total;
      seat.waits = stage.wait_s === null ? null : stage.wait_s / total;
    }
    if (!worker) return live ? { ...seat, kind: 'empty', name: 'empty seat', computes: null, waits: null } : seat;
    const more = workers.length > 1 ? ` (+${workers.length - 1})` : '';
    seat.name = worker.peer + more;
    seat.address = worker.address;
    if (!live) return seat;
    seat.kind = worker.connected ? 'at-work' : 'away';
    if (!worker.connected) seat.note = `heard ${ago(worker.heard_s_ago)}`;
    return seat;
  });
}

const ago = (seconds: number | null): string =>
  seconds === null ? 'never' : `${duration(seconds < 1 ? seconds : Math.round(seconds))} ago`;
const kGlyphs = { 'at-work': '●', away: '✕', empty: '○', over: '·' } as const;
const kWords = { 'at-work': 'connected', away: 'away', empty: 'empty', over: 'not running' } as const;

const blocks = (count: number | undefined): string =>
  count === undefined ? '' : `${count} ${count === 1 ? 'block' : 'blocks'}`;

function tellSeat(index: number, seat: Seat): string {
  const shares = seat.computes === null || seat.kind === 'away' ? '' :
    `, computes ${percent(seat.computes)}, waits ${percent(seat.waits)}`;
  const who = seat.name && seat.kind !== 'empty' ? `: ${seat.name} ${seat.address}` : '';
  return `Stage ${index}${who}, ${kWords[seat.kind]}${seat.note && `, ${seat.note}`}${shares}`;
}

function tellLink(link: Link | undefined): string[] {
  if (!link) return ['no link', '', ''];
  const trip = link.round_trip_s === null ? '' : `${duration(link.round_trip_s)} · `;
  return [rate(link.up_bits_per_s, link.down_bits_per_s), shorten(link.way, 17), `${trip}${percent(link.use)} used`];
}

// A stage of the picture and what in it changes.
class Box {
  readonly node: SVGSVGElement;
  private readonly title = svg('title');
  private readonly texts: SVGTextElement[] = [];
  private readonly bar: SVGRectElement | null;

  constructor(readonly index: number, private readonly place: Place, private readonly large: boolean) {
    const { x, y, w, h } = place;
    this.node = svg('svg', { x, y, width: w, height: h });  // a nested svg clips text that is too long
    const frame = svg('rect', { class: 'frame', x: 1, y: 1, width: w - 2, height: h - 2, rx: large ? 7 : 4 });
    this.node.append(this.title, frame);
    const line = (kind: string, tx: number, ty: number, anchor = 'start') => {
      const text = svg('text', { class: kind, x: tx, y: ty, 'text-anchor': anchor });
      this.texts.push(text);
      this.node.append(text);
    };
    if (large) {
      line('stage', 12, 22);
      line('aside', w - 12, 22, 'end');
      line('peer', 12, 42);
      line('aside', 12, 58);
      line('aside', 12, 76);
      this.bar = svg('rect', { class: 'computes', x: 12, y: h - 10, width: 0, height: 4, rx: 2 });
      this.node.append(svg('rect', { class: 'waits', x: 12, y: h - 10, width: w - 24, height: 4, rx: 2 }), this.bar);
    } else {
      line('number', w / 2, 15, 'middle');
      this.bar = svg('rect', { class: 'computes', x: 4, y: h - 7, width: 0, height: 3 });
      this.node.append(svg('rect', { class: 'waits', x: 4, y: h - 7, width: w - 8, height: 3 }), this.bar);
    }
  }

  update(seat: Seat, count: number | undefined): void {
    setAttribute(this.node, 'class', `seat ${seat.kind}`);
    setText(this.title, tellSeat(this.index, seat));
    const room = Math.floor((this.place.w - 24) / 6.4);
    const shares = `computes ${percent(seat.computes)} · waits ${percent(seat.waits)}`;
    const lines = this.large ? [
      `${kGlyphs[seat.kind]} Stage ${this.index}`, seat.kind === 'away' ? 'away' : blocks(count),
      shorten(seat.name, room), shorten(seat.address, room), seat.note || (seat.computes === null ? '' : shares),
    ] : [String(this.index)];
    lines.forEach((text, i) => setText(this.texts[i]!, text));
    const length = this.place.w - (this.large ? 24 : 8);
    const share = seat.kind === 'at-work' || seat.kind === 'over' ? seat.computes ?? 0 : 0;
    if (this.bar) setAttribute(this.bar, 'width', Math.round(length * Math.min(1, share)));
  }
}

class Wire {
  readonly node = svg('g');
  private readonly title = svg('title');
  private readonly line: SVGPathElement;
  private readonly texts: SVGTextElement[] = [];

  constructor(readonly index: number, from: Place, to: Place, down: boolean, private readonly large: boolean) {
    const middle = from.y + from.h / 2;
    const side = large ? from.x + 26 : from.x + from.w / 2;
    const [x1, x2] = to.x > from.x ? [from.x + from.w, to.x] : [from.x, to.x + to.w];
    const end = large ? 4 : 0;
    this.line = down ?
      svg('path', { class: 'wire', d: `M${side} ${from.y + from.h + end}V${to.y - end}` }) :
      svg('path', { class: 'wire', d: `M${x1 + Math.sign(x2 - x1) * end} ${middle}H${x2 - Math.sign(x2 - x1) * end}` });
    this.node.append(this.title, this.line);
    if (!large) return;
    const base = from.y + from.h + 21;
    const at = down ? [[side + 12, base], [side + 12, base + 15]] :
      [[(x1 + x2) / 2, middle - 9], [(x1 + x2) / 2, middle + 18], [(x1 + x2) / 2, middle + 33]];
    for (const [x, y] of at) {
      const text = svg('text', { class: 'aside', x: x!, y: y!, 'text-anchor': down ? 'start' : 'middle' });
      this.texts.push(text);
      this.node.append(text);
    }
  }

  update(link: Link | undefined, alive: boolean): void {
    const use = Math.min(1, link?.use ?? 0);
    setAttribute(this.node, 'class', `link ${!link || !alive ? 'cut' : use > 0.8 ? 'busy' : ''}`);
    setAttribute(this.line, 'stroke-width', (this.large ? 2 : 1.5) + Math.round(use * 10) / (this.large ? 2 : 3));
    const lines = tellLink(link);
    setText(this.title, `Link ${this.index} to ${this.index + 1}: ${lines.filter(Boolean).join(', ')}`);
    const shown = this.texts.length === 2 ? [lines[0]!, lines.slice(1).filter(Boolean).join(' · ')] : lines;
    this.texts.forEach((text, i) => setText(text, shown[i] ?? ''));
  }
}

export class Pipeline {
  private readonly title = svg('title', {}, 'The pipeline');
  private readonly description = svg('desc');
  private readonly picture = svg('svg', { role: 'img', class: 'pipeline' }, this.title, this.description);
  private readonly key = html('p', 'key');
  private readonly troubles = html('ul', 'troubles');
  private readonly spares = html('div', 'spares');
  private readonly table = html('details', '', html('summary', '', 'As a table'));
  private readonly body = html('tbody');
  private boxes: Box[] = [];
  private wires: Wire[] = [];
  private shape = '';
  private last: { run: Run; status: Status } | null = null;

  constructor(private readonly root: HTMLElement) {
    const heads = ['Stage', 'Machine', 'Address', 'State', 'Heard', 'Computes', 'Waits', 'Link to the next'];
    const row = html('tr', '', ...heads.map((text) => html('th', '', text)));
    const wide = html('div', 'wide', html('table', '', html('thead', '', row), this.body));
    wide.tabIndex = 0;  // so that the keyboard can scroll it
    this.table.append(wide);
    this.table.addEventListener('toggle', () => this.redraw());
    root.append(this.picture, this.key, this.troubles, this.spares, this.table);
    setText(this.key, '● connected   ✕ away   ○ empty seat   bar: share of the last step spent computing   ' +
      'line: thicker when the link is busier');
    new ResizeObserver(() => this.redraw()).observe(root);
  }

  update(run: Run, status: Status): void {
    this.last = { run, status };
    this.redraw();
  }

  private redraw(): void {
    if (!this.last || !this.root.clientWidth) return;
    const { run, status } = this.last;
    const seats = findSeats(run, status);
    this.arrange(run.stages, this.root.clientWidth);
    seats.forEach((seat, i) => this.boxes[i]!.update(seat, run.cuts[i]));
    const links = new Map(status.links.map((link) => [link.boundary, link]));
    this.wires.forEach((wire, i) =>
      wire.update(links.get(i), seats[i]!.kind === 'at-work' && seats[i + 1]!.kind === 'at-work'));
    this.describe(seats);
    this.showSpares(status.workers.filter((worker) => worker.stage < 0));
    if (this.table.open) this.fillTable(run, status, seats, links);
  }

  private arrange(count: number, width: number): void {
    const shape = `${count} ${width}`;
    if (shape === this.shape) return;
    this.shape = shape;
    const { large, places, down, height } = layOut(count, width);
    this.boxes = places.map((place, i) => new Box(i, place, large));
    this.wires = places.slice(1).map((place, i) => new Wire(i, places[i]!, place, down[i]!, large));
    setAttribute(this.picture, 'viewBox', `0 0 ${width} ${Math.max(1, height)}`);
    setAttribute(this.picture, 'height', Math.max(1, height));
    const parts = [...this.wires, ...this.boxes].map((part) => part.node);
    this.picture.replaceChildren(this.title, this.description, ...parts);
    this.picture.classList.toggle('small', !large);
  }

  // The picture in words, and, where the cells have no room for it, what is wrong with which stage.
  private describe(seats: Seat[]): void {
    const wrong = seats.flatMap((seat, i) => seat.kind === 'away' || seat.kind === 'empty' ? [tellSeat(i, seat)] : []);
    const good = seats.filter((seat) => seat.kind === 'at-work').length;
    const shown = wrong.slice(0, kTroublesShown);
    if (wrong.length > shown.length) shown.push(`and ${integer(wrong.length - shown.length)} more`);
    setText(this.description, [`${good} of ${seats.length} stages are connected`, ...shown].join('. '));
    this.troubles.hidden = seats.length <= kLargeStages || !shown.length;
    if (!this.troubles.hidden && this.troubles.textContent !== shown.join('')) {
      this.troubles.replaceChildren(...shown.map((text) => html('li', '', text)));
    }
  }

  private showSpares(spares: Worker[]): void {
    this.spares.hidden = !spares.length;
    const texts = spares.slice(0, kSparesShown).map((one) => [one.peer, one.address, one.connected ? '' : 'away']);
    const more = spares.length > texts.length ? `and ${integer(spares.length - texts.length)} more` : '';
    const key = JSON.stringify([texts, more]);
    if (this.spares.dataset.key === key) return;
    this.spares.dataset.key = key;
    this.spares.replaceChildren(html('h3', '', `Waiting for a seat (${integer(spares.length)})`),
      html('ul', '', ...texts.map(([peer, address, away]) =>
        html('li', away ? 'away' : '', html('b', '', shorten(peer!, 40)), ` ${shorten(address!, 60)} ${away}`)),
      ...(more ? [html('li', '', more)] : [])));
  }

  private fillTable(run: Run, status: Status, seats: Seat[], links: Map<number, Link>): void {
    const heard = new Map(status.workers.map((worker) => [worker.stage, worker.heard_s_ago]));
    const rows = seats.map((seat, i) => [
      String(i), seat.name, seat.address, kWords[seat.kind], seat.kind === 'empty' ? '' : ago(heard.get(i) ?? null),
      percent(seat.computes), percent(seat.waits), i + 1 < run.stages ? tellLink(links.get(i)).join(' · ') : '']);
    for (const one of status.workers.filter((worker) => worker.stage < 0)) {
      rows.push([kUnknown, one.peer, one.address, one.connected ? 'waits for a seat' : 'away', ago(one.heard_s_ago)]);
    }
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1);
    rows.forEach((texts, i) => {
      const row = this.body.rows[i] ?? this.body.insertRow();
      for (let column = 0; column < 8; ++column) {
        setText(row.cells[column] ?? row.insertCell(), texts[column] ?? '');
      }
    });
  }
}
