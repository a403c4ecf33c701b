// Conversations, in memory and in the browser's IndexedDB. Whatever IndexedDB does, the page works.

import { strings } from "./strings.js";
import { kept } from "./dom.js";
import { merge, snapshot } from "./tree.js";

const TABLE = "conversations";

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("switchyard", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export class Store {
  // `trouble` takes a sentence, or null once all is well. `changed` takes an id and what another tab changed it to.
  constructor(trouble, changed) {
    this.all = new Map();
    this.seen = new Map(); // by id: a snapshot of what is kept
    this.keeps = kept.read("keeps", true, "localStorage");
    Object.assign(this, { trouble, changed });
    this.database = null;
    this.channel = null;
    if (typeof BroadcastChannel === "function") {
      this.channel = new BroadcastChannel("switchyard");
      this.channel.onmessage = ({ data }) => this.reread(data);
    }
  }

  // Read the stored conversations.
  async load() {
    try {
      this.database = await opened();
      this.database.onversionchange = () => this.database.close();
      const rows = await this.ask("readonly", (table) => table.getAll());
      for (const row of rows) this.adopt(row);
    } catch {
      this.database = null;
      if (this.keeps) this.trouble(strings.keptNowhere(strings.storageMissing));
    }
  }

  // By time, the newest first. Those without a message aren't listed.
  list() {
    const begun = [...this.all.values()].filter((one) => one.messages.length);
    return begun.sort((a, b) => b.updated - a.updated);
  }

  // Take a row as it is kept.
  adopt(row) {
    this.all.set(row.id, row);
    this.seen.set(row.id, snapshot(row));
  }

  async put(conversation) {
    const { id } = conversation;
    this.all.set(id, conversation);
    if (!this.keeps || !conversation.messages.length) return;
    const before = this.seen.get(id) ?? new Map();
    this.seen.set(id, snapshot(conversation));
    // Written at once, as the page may be about to go; what that replaces may be another tab's.
    const replaced = await this.change(id, (table) => {
      const old = table.get(id);
      table.put(conversation);
      return old;
    });
    if (!replaced || this.all.get(id) !== conversation || !merge(conversation, replaced, before)) return;
    await this.put(conversation);
    this.changed(id, conversation);
  }

  async delete(conversation) {
    this.all.delete(conversation.id);
    this.seen.delete(conversation.id);
    await this.change(conversation.id, (table) => table.delete(conversation.id));
  }

  // Whether to keep conversations beyond this tab.
  async keep(keeps) {
    this.keeps = keeps;
    kept.write("keeps", keeps, "localStorage");
    if (!keeps) {
      await this.change(null, (table) => table.clear());
      this.trouble(null);
      return;
    }
    await Promise.all([...this.all.values()].map((one) => this.put(one)));
  }

  async change(id, act) {
    if (!this.database) {
      if (this.keeps) this.trouble(strings.keptNowhere(strings.storageMissing));
      return;
    }
    try {
      const result = await this.ask("readwrite", act);
      this.trouble(null);
      if (id) this.channel?.postMessage(id);
      return result;
    } catch (error) {
      const isFull = error?.name === "QuotaExceededError";
      this.trouble(strings.keptNowhere(isFull ? strings.storageFull : strings.storageMissing));
    }
  }

  async reread(id) {
    if (!this.database || !this.keeps) return;
    const row = await this.ask("readonly", (table) => table.get(id)).catch(() => undefined);
    this.changed(id, row);
  }

  // The result, once it is on the disk.
  ask(mode, act) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(TABLE, mode);
      const request = act(transaction.objectStore(TABLE));
      // Otherwise a browser drops what a page has just written when it is closed or reloaded.
      if (mode === "readwrite") transaction.commit();
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error ?? request.error);
      transaction.onerror = () => reject(request.error ?? transaction.error);
    });
  }
}
