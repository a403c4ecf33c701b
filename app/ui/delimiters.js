// CommonMark's delimiter algorithm: which runs of * _ and ~ are emphasis.

const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/;

/** The character that ends at a place of a text; a line's end before the first. */
function before(text, at) {
  if (!at) return "\n";
  const pair = at > 1 && /[\udc00-\udfff]/.test(text[at - 1]);
  return pair ? text.slice(at - 2, at) : text[at - 1];
}

function after(text, at) {
  return at < text.length ? String.fromCodePoint(text.codePointAt(at)) : "\n";
}

/** Whether a run of marks may open emphasis, and whether it may close it. */
function flanks(text, begin, end) {
  const [left, right] = [before(text, begin), after(text, end)];
  const [markLeft, markRight] = [PUNCTUATION.test(left), PUNCTUATION.test(right)];
  const opens = !SPACE.test(right) && (!markRight || SPACE.test(left) || markLeft);
  const closes = !SPACE.test(left) && (!markLeft || SPACE.test(right) || markRight);
  if (text[begin] !== "_") return { opens, closes };
  return { opens: opens && (!closes || markLeft), closes: closes && (!opens || markRight) };
}

/** The runs of one text, a linked list. `list` has the text's nodes, and encloses some in a new one. */
export class Delimiters {
  constructor(list) {
    this.list = list;
    this.last = null;
    this.number = 0; // of runs so far
  }

  /** Take the run of marks from `begin` to `end` of a text; `node` stands for it. */
  add(text, begin, end, node) {
    const length = end - begin;
    const run = { node, mark: text[begin], length, original: length, number: this.number++ };
    if (run.mark === "~" && length > 2) return;
    Object.assign(run, flanks(text, begin, end), { previous: this.last, next: null });
    if (this.last) this.last.next = run;
    this.last = run;
  }

  drop(run) {
    const { previous, next } = run;
    if (previous) previous.next = next;
    if (next) next.previous = previous;
    else this.last = previous;
  }

  /** Pair the runs from number `bottom` on, and forget them. */
  pair(bottom) {
    const bottoms = new Map(); // where the search for an opener of a kind ends
    let closer = null;
    for (let run = this.last; run && run.number >= bottom; run = run.previous) closer = run;
    while (closer) {
      if (!closer.closes) {
        closer = closer.next;
        continue;
      }
      const length = closer.mark === "~" ? closer.length : closer.original % 3;
      const kind = `${closer.mark}${closer.opens}${length}`;
      const opener = this.opener(closer, bottoms.get(kind) ?? bottom);
      if (opener) {
        closer = this.wrap(opener, closer);
        continue;
      }
      bottoms.set(kind, closer.number);
      const { next } = closer;
      if (!closer.opens) this.drop(closer);
      closer = next;
    }
    while (this.last && this.last.number >= bottom) this.drop(this.last);
  }

  opener(closer, bottom) {
    for (let run = closer.previous; run && run.number >= bottom; run = run.previous) {
      if (run.mark === closer.mark && run.opens && this.fit(run, closer)) return run;
    }
    return null;
  }

  fit(opener, closer) {
    if (opener.mark === "~") return opener.length === closer.length;
    if (!opener.closes && !closer.opens) return true;
    const thirds = [opener.original % 3, closer.original % 3];
    return (thirds[0] + thirds[1]) % 3 !== 0 || (thirds[0] === 0 && thirds[1] === 0);
  }

  /** Make what is between two runs emphasis; returns the run to continue with. */
  wrap(opener, closer) {
    while (closer.previous !== opener) this.drop(closer.previous);
    const struck = opener.mark === "~";
    const used = struck ? opener.length : Math.min(opener.length, closer.length, 2);
    const name = struck ? "del" : used === 2 ? "strong" : "em";
    this.list.enclose(opener.node, closer.node, { name });
    for (const run of [opener, closer]) {
      run.length -= used;
      run.node.text = run.node.text.slice(used);
    }
    if (!opener.length) this.drop(opener);
    if (closer.length) return closer;
    this.drop(closer);
    return closer.next;
  }
}
