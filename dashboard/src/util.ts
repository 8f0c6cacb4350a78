// Helpers for the DOM and for writing numbers. Text from the server may be hostile: it enters the page only as text
// nodes and attribute values, never as markup.

type Child = Node | string;

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`index.html has no #${id}`);
  return found as T;
}

export function html<K extends keyof HTMLElementTagNameMap>(
  tag: K, className = '', ...children: Child[]): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K, attributes: Record<string, string | number> = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

// These write only what changed, so that an update costs no layout where nothing happened.
export function setText(node: Node, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node: Element, name: string, value: string | number): void {
  const text = String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

// The colour that style.css gives to a name, for canvases.
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

type Maybe = number | null | undefined;
export const kUnknown = '–';
const is = (value: Maybe): value is number => typeof value === 'number' && Number.isFinite(value);
const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 2 });

export const integer = (value: Maybe): string => is(value) ? whole.format(value) : kUnknown;
export const compact = (value: Maybe): string => is(value) ? short.format(value) : kUnknown;
export const percent = (value: Maybe): string => is(value) ? `${Math.round(value * 100)}%` : kUnknown;
export const fixed = (value: Maybe, digits: number): string => is(value) ? value.toFixed(digits) : kUnknown;

// Four significant digits without an exponent where that is readable.
export function number(value: Maybe): string {
  if (!is(value)) return kUnknown;
  const size = Math.abs(value);
  if (size >= 1000) return whole.format(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function duration(seconds: Maybe): string {
  if (!is(seconds)) return kUnknown;
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${integer(Math.floor(s / 86400))} d ${Math.floor(s / 3600) % 24} h`;
}

function scaled(bits: number): [number, string] {
  for (const [size, unit] of [[1e9, 'Gbit/s'], [1e6, 'Mbit/s'], [1e3, 'kbit/s']] as const) {
    if (bits >= size) return [size, unit];
  }
  return [1, 'bit/s'];
}

export function rate(up: Maybe, down: Maybe): string {
  if (!is(up) && !is(down)) return 'rate unknown';
  const [size, unit] = scaled(Math.max(up ?? 0, down ?? 0));
  const write = (bits: Maybe) => is(bits) ? String(Number((bits / size).toPrecision(2))) : '?';
  return write(up) === write(down) ? `${write(up)} ${unit}` : `↑${write(up)} ↓${write(down)} ${unit}`;
}

export function shorten(text: string, length: number): string {
  const points = Array.from(text.slice(0, 2 * length + 2));
  return points.length > length ? `${points.slice(0, length - 1).join('')}…` : points.join('');
}
