// The last step of every stage as one row: forward, backward and update where the stage computed, the ground where it
// waited or sent. A canvas, because 200 stages have thousands of passes. Without passes, the totals are stacked.
import type { Stage } from './api';
import { colour, duration, html, percent, setAttribute, setText } from './util';

const kLabelWidth = 34;
const kAxisHeight = 20;
const kKinds = { f: 'forward', b: 'backward', u: 'update', w: 'waits' } as const;
type Kind = keyof typeof kKinds;
type Piece = [kind: Kind, label: string, begin: number, end: number];

function pieces(stage: Stage): Piece[] {
  const total = stage.total_s ?? 0;
  const update = stage.update_s ?? 0;
  if (stage.passes?.length) {
    const done = stage.passes.map(([way, number, begin, end]): Piece =>
      [way, `${kKinds[way]} ${number}`, begin, end]);
    const last = Math.max(...stage.passes.map((pass) => pass[3]));
    if (update > 0) done.push(['u', 'update', Math.max(last, total - update), Math.max(last + update, total)]);
    return done;
  }
  let at = 0;
  const parts: [Kind, number | null][] =
    [['f', stage.forward_s], ['b', stage.backward_s], ['u', update], ['w', stage.wait_s]];
  return parts.map(([kind, length]) => [kind, kKinds[kind], at, at += length ?? 0]);
}

export class Timeline {
  private readonly canvas = html('canvas', 'timeline');
  private readonly empty = html('p', 'quiet', 'Shown after the first step.');
  private readonly readout = html('p', 'readout');
  private readonly note = html('p', 'key');
  private stages: Stage[] = [];
  private rows: Piece[][] = [];
  private span = 0;
  private row = 0;
  private drawn = '';

  constructor(private readonly root: HTMLElement) {
    const legend = html('p', 'legend', ...Object.values(kKinds).map((name) =>
      html('span', '', html('i', `swatch ${name}`), name === 'waits' ? 'waits or sends' : name)));
    this.canvas.setAttribute('role', 'img');
    root.append(html('div', 'bar', legend, this.readout), this.canvas, this.empty, this.note);
    this.canvas.addEventListener('pointermove', (event) => this.point(event));
    this.canvas.addEventListener('pointerleave', () => setText(this.readout, ''));
    new ResizeObserver(() => this.redraw()).observe(root);
  }

  update(stages: Stage[], step: number): void {
    const key = `${step} ${stages.length} ${stages.map((stage) => stage.total_s).join(' ')}`;
    if (key === this.drawn) return;
    this.drawn = key;
    this.stages = stages;
    this.rows = stages.map(pieces);
    const ends = stages.map((stage, i) => Math.max(stage.total_s ?? 0, this.rows[i]!.at(-1)?.[3] ?? 0));
    this.span = Math.max(0, ...ends);
    this.redraw();
    const waits = stages.slice(0, 24).map(({ total_s, wait_s }, i) =>
      `stage ${i} waits ${percent(total_s && wait_s !== null ? wait_s / total_s : null)}`);
    setAttribute(this.canvas, 'aria-label', `The last step took ${duration(this.span)}; ${waits.join(', ')}`);
    setText(this.note, stages.some((stage) => stage.passes?.length) ?
      'Seconds since each stage began the step; the numbers are microbatches.' :
      'Totals of the step; this run reports no single passes.');
  }

  redraw(): void {
    const width = this.root.clientWidth;
    const any = this.span > 0 && width > 0;
    this.canvas.hidden = this.note.hidden = !any;
    this.empty.hidden = any;
    if (!any) return;
    this.row = Math.max(3, Math.min(26, Math.floor(480 / this.stages.length)));
    const height = this.row * this.stages.length + kAxisHeight;
    const scale = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext('2d')!;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = 'middle';
    this.drawRows(context, width);
    this.drawAxis(context, width, height - kAxisHeight);
  }

  private x(seconds: number, width: number): number {
    return kLabelWidth + seconds / this.span * (width - kLabelWidth - 1);
  }

  private drawRows(context: CanvasRenderingContext2D, width: number): void {
    const colours = { f: colour('forward'), b: colour('backward'), u: colour('update'), w: colour('ground') };
    const inside = { f: colour('on-forward'), b: colour('on-backward') };
    const text = colour('muted');
    const thick = this.row > 8 ? this.row - 5 : this.row - 1;
    const labelsEvery = Math.ceil(13 / this.row);
    this.rows.forEach((row, i) => {
      const top = i * this.row + (this.row - thick) / 2;
      context.fillStyle = colours.w;
      context.fillRect(kLabelWidth, top, this.x(this.stages[i]!.total_s ?? 0, width) - kLabelWidth, thick);
      for (const [kind, label, begin, end] of row) {
        const left = this.x(begin, width);
        const length = this.x(end, width) - left;
        context.fillStyle = colours[kind];
        context.fillRect(left, top, Math.max(0.5, length > 4 ? length - 1 : length), thick);
        if (thick < 14 || length < 20 || kind === 'u' || kind === 'w') continue;
        context.fillStyle = inside[kind];
        context.textAlign = 'center';
        context.fillText(label.replace(/^\D+/, ''), left + length / 2, top + thick / 2 + 0.5);
      }
      if (i % labelsEvery) return;
      context.fillStyle = text;
      context.textAlign = 'right';
      context.fillText(String(i), kLabelWidth - 8, top + Math.max(thick / 2, 4));
    });
  }

  private drawAxis(context: CanvasRenderingContext2D, width: number, top: number): void {
    const rough = this.span / Math.max(2, Math.floor(width / 110));
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough)!;
    context.fillStyle = colour('muted');
    for (let i = 0; i * every <= this.span; ++i) {
      const left = this.x(i * every, width);
      context.fillRect(left, top, 1, 4);
      context.textAlign = i === 0 ? 'left' : left > width - 30 ? 'right' : 'center';
      context.fillText(i === 0 ? '0' : duration(i * every), left, top + 12);
    }
  }

  private point(event: PointerEvent): void {
    const index = Math.floor(event.offsetY / this.row);
    const stage = this.stages[index];
    const width = this.root.clientWidth;
    const at = (event.offsetX - kLabelWidth) / (width - kLabelWidth - 1) * this.span;
    if (!stage || at < 0) return setText(this.readout, '');
    const piece = this.rows[index]!.find(([, , begin, end]) => begin <= at && at < end);
    const what = piece ? `${piece[1]}, ${duration(piece[3] - piece[2])}` : 'waits or sends';
    setText(this.readout, `stage ${index} at ${duration(at)}: ${what}`);
  }
}
