// Text as it comes, in blocks.

const BLOCK = 16_000; // characters of one block

export class Markdown {
  constructor(container) {
    this.container = container;
    this.block = null;
  }

  write(text) {
    for (let at = 0; at < text.length; ) {
      if (!this.block || this.block.length >= BLOCK) this.begin();
      const piece = text.slice(at, at + BLOCK - this.block.length);
      this.block.appendData(piece);
      at += piece.length;
    }
  }

  begin() {
    const pre = document.createElement("pre");
    pre.className = "raw";
    this.block = document.createTextNode("");
    pre.append(this.block);
    this.container.append(pre);
  }

  end() {}
}

export function render(text) {
  const fragment = document.createDocumentFragment();
  const shown = new Markdown(fragment);
  shown.write(text);
  shown.end();
  return fragment;
}
