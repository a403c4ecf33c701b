// Work in parts: after some milliseconds the browser gets a turn, to draw and to handle input.

const SPAN = 6; // milliseconds of work in one turn
const LATE = 100; // milliseconds; a hidden page has no frames, and a busy machine has few

let end = 0; // of this turn's work; 0 before it begins
let next = null;

const frame = () => new Promise((resolve) => {
  const timer = setTimeout(() => {
    document.body.getBoundingClientRect(); // lays out this turn's work, which else waits for one frame with the next's
    resolve();
  }, LATE);
  requestAnimationFrame(() => (clearTimeout(timer), setTimeout(resolve))); // after the frame, not before it
});

/** Resolves in the next turn. */
export function nextTurn() {
  next ??= frame().then(() => {
    end = 0;
    next = null;
  });
  return next;
}

/** Whether this turn has worked long enough. */
export function isOver() {
  const now = performance.now();
  if (end === 0) {
    end = now + SPAN;
    nextTurn();
  }
  return now > end;
}
