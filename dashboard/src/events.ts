// What happened to the run and why, newest first.
import type { Event } from './api';
import { html } from './util';

const kShown = 200;

function when(time: string): HTMLTimeElement {
  const at = new Date(time);
  const node = html('time');
  if (Number.isNaN(at.getTime())) {
    node.textContent = time.slice(0, 30);
    return node;
  }
  const today = at.toDateString() === new Date().toDateString();
  node.dateTime = at.toISOString();
  node.title = at.toLocaleString();
  const clock = at.toLocaleTimeString('en-GB');
  node.textContent = today ? clock : `${at.toLocaleDateString('en-CA').slice(5)} ${clock}`;
  return node;
}

export class Events {
  constructor(private readonly list: HTMLElement) {
    list.append(html('li', 'quiet', 'Nothing happened yet.'));
  }

  clear(): void {
    this.list.replaceChildren();
  }

  // `fresh` is in the order of its numbers.
  add(fresh: Event[]): void {
    this.list.querySelector('.quiet')?.remove();
    const rows = fresh.slice(-kShown).reverse().map((event) => {
      const kind = html('span', 'kind', event.kind);
      return html('li', '', when(event.time), kind, html('span', 'text', event.text));
    });
    this.list.prepend(...rows);
    while (this.list.childElementCount > kShown) this.list.lastElementChild!.remove();
  }
}
