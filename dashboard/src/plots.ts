// The curves of the run. All plots share the steps they show; dragging over one, or the form, chooses them.
import uPlot from 'uplot';
import type { Run, Steps } from './api';
import { colour, compact, fixed, html, integer, kUnknown, number, percent, setAttribute, setText } from './util';

type Column = (number | null | undefined)[];

interface Curve {
  label: string;
  colour: string;
  write: (value: number) => string;
  kind?: 'line' | 'points' | 'edge' | 'told';  // an edge bounds a band; what is told is written but not drawn
}

interface Spec {
  title: string;
  curves: Curve[];
  data: (steps: Steps, run: Run) => uPlot.AlignedData | null;  // null: there is nothing to show
  fromZero?: boolean;
  wide?: boolean;
  axis?: (value: number) => string;  // writes the ticks
}

const one = (title: string, tint: string, write: (value: number) => string, key: keyof Steps, axis = number): Spec => ({
  title, axis, fromZero: true, curves: [{ label: '', colour: tint, write }],
  data: (steps) => [steps.step, steps[key] as Column],
});

const basis = (title: string, tint: string, write: (value: number) => string,
  key: 'energy_inside' | 'largest_angle' | 'dropped_share'): Spec => ({
  title, curves: [{ label: '', colour: tint, write }], fromZero: key !== 'energy_inside',
  axis: key === 'energy_inside' ? write : number,
  data: ({ basis }) => basis?.step?.length ? [basis.step, basis[key]] : null,
});

const kSpecs: Spec[] = [
  {
    title: 'Loss', wide: true,
    curves: [
      { label: 'training', colour: 'forward', write: (value) => fixed(value, 4) },
      { label: 'validation', colour: 'backward', write: (value) => fixed(value, 4), kind: 'points' },
      { label: 'largest', colour: 'forward', write: number, kind: 'edge' },
      { label: 'smallest', colour: 'forward', write: number, kind: 'edge' },
    ],
    data: ({ step, loss, loss_max, loss_min, validation }) => {
      const tables: uPlot.AlignedData[] = [[step, loss, loss_max, loss_min], [validation.step, validation.loss]];
      const [x, training, high, low, held] = uPlot.join(tables);
      return [x, training, held, high, low] as uPlot.AlignedData;
    },
  },
  one('Tokens per second', 'update', integer, 'tokens_per_s', compact),
  one('Waiting share', 'muted', percent, 'wait_share', percent),
  {
    title: 'Bytes per token over a cut', fromZero: true,
    curves: [
      { label: '', colour: 'backward', write: number },
      { label: 'compression', colour: 'backward', write: (value) => `${number(value)}×`, kind: 'told' },
    ],
    data: ({ step, bytes_per_token }, { fp32_bytes_per_token }) => [step, bytes_per_token, bytes_per_token.map((sent) =>
      sent && fp32_bytes_per_token ? fp32_bytes_per_token / sent : null)],
  },
  one('Gradient norm', 'violet', number, 'grad_norm'),
  one('Learning rate', 'muted', number, 'lr'),
  basis('Basis: energy inside', 'forward', (value) => `${(value * 100).toFixed(1)}%`, 'energy_inside'),
  basis('Basis: largest angle (rad)', 'violet', number, 'largest_angle'),
  basis('Basis: dropped share', 'alarm', number, 'dropped_share'),
];

// Round numbers between `low` and `high` on a logarithmic axis, also where it spans less than a decade.
function logTicks(low: number, high: number): number[] {
  const ticks: number[] = [];
  if (high / low < 8) {
    const rough = (high - low) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough)!;
    for (let i = Math.ceil(low / every); i * every <= high; ++i) ticks.push(Number((i * every).toPrecision(12)));
    return ticks;
  }
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    for (const factor of [1, 2, 5]) {
      if (factor * power >= low && factor * power <= high) ticks.push(factor * power);
    }
  }
  return ticks;
}

// The last value of a column at or before `index`.
function before(column: Column, index: number): number | null {
  for (let i = index; i >= 0; --i) {
    const value = column[i];
    if (typeof value === 'number') return value;
  }
  return null;
}

class Plot {
  readonly node: HTMLElement;
  private readonly holder = html('div', 'plot');
  private readonly readout = html('span', 'readout');
  private chart: uPlot | null = null;
  private data: uPlot.AlignedData | null = null;
  private range: [number, number] = [0, 1];
  private log = false;

  constructor(private readonly spec: Spec, private readonly choose: (from: number, to: number) => void,
    private readonly reset: () => void) {
    const bar = html('div', 'bar', html('h3', '', spec.title), this.readout);
    if (spec.wide) bar.append(this.makeLogButton());
    this.node = html('div', spec.wide ? 'figure wide-figure' : 'figure', bar, this.holder);
    this.holder.setAttribute('role', 'img');
    this.node.hidden = true;
    new ResizeObserver(() => this.chart?.setSize(this.size())).observe(this.holder);
  }

  get width(): number { return this.holder.clientWidth; }

  show(steps: Steps, run: Run): void {
    this.data = this.spec.data(steps, run);
    this.range = [steps.from, Math.max(steps.to, steps.from + 1)];
    this.node.hidden = !this.data;
    if (!this.data) return;
    if (this.chart) this.chart.setData(this.data);
    else this.rebuild();
    this.read();
  }

  // Makes the chart; again after the colours or the scale changed, which uPlot cannot change.
  rebuild(): void {
    this.chart?.destroy();
    this.chart = this.data ? new uPlot(this.options(), this.data, this.holder) : null;
  }

  private makeLogButton(): HTMLElement {
    const button = html('button', 'toggle', 'Log scale');
    button.type = 'button';
    button.setAttribute('aria-pressed', 'false');
    button.addEventListener('click', () => {
      this.log = !this.log;
      button.setAttribute('aria-pressed', String(this.log));
      this.rebuild();
    });
    return button;
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(100, this.width), height: this.spec.wide ? 260 : 150 };
  }

  private yScale(): uPlot.Scale {
    const { fromZero } = this.spec;
    const ends = (low: number | null, high: number | null): [number, number] => {
      if (low === null || high === null) return this.log ? [1, 10] : [0, 1];
      if (this.log) return [low / 1.03, high * 1.03];
      const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      return [fromZero ? Math.min(0, low) : low - pad, high + pad];
    };
    return { distr: this.log ? 3 : 1, range: (_, low, high) => ends(low, high) };
  }

  private options(): uPlot.Options {
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const grid = { stroke: colour('line'), width: 1 };
    const ticks = { ...grid, size: 4 };
    const axis = { stroke: colour('muted'), font, grid, ticks };
    const tick = this.spec.axis ?? number;
    const { log } = this;
    return {
      ...this.size(), legend: { show: false }, padding: [8, 10, 0, 0],
      scales: { x: { time: false, range: () => this.range }, y: this.yScale() },
      axes: [
        { ...axis, size: 24, gap: 3, space: 52, incrs: [1, 2, 5].concat(...[1, 2, 3, 4, 5, 6, 7, 8].map(
          (power) => [1, 2, 5].map((factor) => factor * 10 ** power))), values: (_, splits) => splits.map(compact) },
        { ...axis, size: 52, gap: 4, space: 32, values: (_, splits) => splits.map(tick),
          ...(log ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, splits) => splits } : {}) },
      ],
      series: [{}, ...this.spec.curves.map((curve) => this.series(curve))],
      bands: this.spec.wide ? [{ series: [3, 4], fill: colour('band') }] : [],
      cursor: {
        y: false, sync: { key: 'steps' }, drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => { this.reset(); return null; } },
      },
      hooks: { setSelect: [(chart) => this.select(chart)], setCursor: [() => this.read()] },
    };
  }

  private series({ kind = 'line', colour: name }: Curve): uPlot.Series {
    if (kind === 'told') return { scale: 'told', paths: () => null, points: { show: false } };
    if (kind === 'edge') return { width: 0, points: { show: false } };
    const stroke = colour(name);
    const dots = { size: 5, fill: stroke, stroke };
    if (kind === 'points') return { stroke, width: 1, dash: [4, 3], spanGaps: true, points: { ...dots, show: true } };
    return { stroke, width: 1.5, points: { ...dots, size: 4 } };
  }

  private select(chart: uPlot): void {
    const { left, width } = chart.select;
    if (width < 3) return;
    const [from, to] = [chart.posToVal(left, 'x'), chart.posToVal(left + width, 'x')];
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (to - from >= 1) this.choose(Math.max(0, Math.floor(from)), Math.ceil(to));
  }

  // Writes the values at the cursor, or the last ones.
  private read(): void {
    if (!this.data) return;
    const steps = this.data[0];
    const index = this.chart?.cursor.idx ?? steps.length - 1;
    const parts: Node[] = [];
    if (typeof this.chart?.cursor.idx === 'number') parts.push(html('span', '', `step ${integer(steps[index])}`));
    this.spec.curves.forEach((curve, i) => {
      if (curve.kind === 'edge') return;
      const value = before(this.data![i + 1] as Column, index);
      const swatch = curve.label && curve.kind !== 'told' ? [html('i', `swatch ${curve.colour}`)] : [];
      const label = curve.label ? `${curve.label} ` : '';
      parts.push(html('span', '', ...swatch, label, html('b', '', value === null ? kUnknown : curve.write(value))));
    });
    this.readout.replaceChildren(...parts);
    const shown = `steps ${integer(steps[0])} to ${integer(steps.at(-1))}`;
    setAttribute(this.holder, 'aria-label', `${this.spec.title}, ${shown}`);
  }
}

export class Plots {
  private readonly plots: Plot[];
  private readonly empty = html('p', 'quiet', 'Shown after the first step.');

  constructor(root: HTMLElement, choose: (from: number, to: number) => void, reset: () => void) {
    this.plots = kSpecs.map((spec) => new Plot(spec, choose, reset));
    root.append(this.empty, ...this.plots.map((plot) => plot.node));
  }

  // Takes up the colours of style.css again.
  recolour(): void {
    this.plots.forEach((plot) => plot.rebuild());
  }

  // How many points fill the widest plot.
  points(): number {
    const width = Math.max(...this.plots.map((plot) => plot.width), 0) || window.innerWidth;
    return Math.max(50, Math.min(5000, Math.round(width)));
  }

  show(steps: Steps, run: Run): void {
    setText(this.empty, steps.step.length ? '' : 'No steps here yet.');
    this.empty.hidden = steps.step.length > 0;
    for (const plot of this.plots) {
      if (steps.step.length) plot.show(steps, run);
      else plot.node.hidden = true;
    }
  }
}
