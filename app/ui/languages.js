// Languages that code is coloured in: how their comments and strings begin, and their keywords.

const DOUBLE = '"';
const SINGLE = "'";
const SLASHES = { line: ["//"], block: [["/*", "*/"]], quotes: [DOUBLE, SINGLE] };
const HASH = { line: ["#"], block: [], quotes: [DOUBLE, SINGLE] };
const JAVASCRIPT = `async await break case catch class const continue default delete do else export extends false
  finally for from function if import in instanceof let new null of return static super switch this throw true try
  typeof undefined var void while yield`;

// line: what begins a comment to the line's end; block: ends of what may span lines, `text` those of strings;
// quotes: of strings within a line; tags: whether <name is a keyword.
const LANGUAGES = {
  bash: {
    ...HASH,
    keywords: `case do done elif else esac exit export fi for function if in local return set then until while`,
  },
  c: {
    ...SLASHES,
    keywords: `auto bool break case catch char class const constexpr continue default define delete do double else
      endif enum extern false float for if ifdef ifndef include inline int long namespace new NULL nullptr private
      protected public return short signed sizeof static struct switch template this throw true try typedef typename
      union unsigned using virtual void volatile while`,
  },
  css: { ...SLASHES, line: [], keywords: `and from important not only to` },
  go: {
    ...SLASHES,
    text: [["`", "`"]],
    keywords: `break case chan const continue default defer else false for func go if import interface map nil
      package range return select struct switch true type var`,
  },
  java: {
    ...SLASHES,
    text: [['"""', '"""']],
    keywords: `abstract as async await boolean break byte case catch char class const continue data default do double
      else enum extends false final finally float for fun func get guard if implements import in int interface
      internal is let long namespace new nil null object override package private protected public readonly return
      sealed self set short static string struct super switch this throw throws true try using val var void when
      while`,
  },
  javascript: { ...SLASHES, text: [["`", "`"]], keywords: JAVASCRIPT },
  json: { line: [], block: [], quotes: [DOUBLE], keywords: `false null true` },
  python: {
    ...HASH,
    text: [
      ['"""', '"""'],
      ["'''", "'''"],
    ],
    keywords: `and as assert async await break case class continue def del elif else except False finally for from
      global if import in is lambda match None nonlocal not or pass raise return self True try while with yield`,
  },
  ruby: {
    ...HASH,
    keywords: `begin break case class def do else elsif end ensure false for if in module next nil not or redo
      require rescue retry return self super then true unless until when while yield`,
  },
  rust: {
    ...SLASHES,
    quotes: [DOUBLE],
    keywords: `as async await break const continue crate dyn else enum extern false fn for if impl in let loop match
      mod move mut pub ref return self Self static struct super trait true type unsafe use where while`,
  },
  sql: {
    line: ["--"],
    block: [["/*", "*/"]],
    quotes: [DOUBLE, SINGLE],
    caseless: true,
    keywords: `all alter and as asc begin between by case commit create cross default delete desc distinct drop else
      end exists false foreign from full group having in index inner insert into is join key left like limit not null
      offset on or order outer primary references right select set table then true union unique update using values
      view when where with`,
  },
  typescript: {
    ...SLASHES,
    text: [["`", "`"]],
    keywords: `${JAVASCRIPT} abstract any as boolean declare enum implements interface keyof namespace never number
      private protected public readonly string type unknown`,
  },
  xml: { line: [], block: [["<!--", "-->"]], quotes: [DOUBLE, SINGLE], keywords: "", tags: true },
  yaml: { ...HASH, keywords: `false no null off on true yes` },
};

const ALIASES = {
  bash: "sh shell zsh console dockerfile makefile",
  c: "c++ cc cpp h hpp cuda",
  css: "scss less",
  go: "golang",
  java: "c# cs csharp kotlin kt scala swift dart php",
  javascript: "js jsx mjs cjs jsonc json5",
  python: "py python3 pycon",
  ruby: "rb",
  rust: "rs",
  sql: "mysql postgres postgresql sqlite",
  typescript: "ts tsx",
  xml: "html svg vue",
  yaml: "yml toml ini",
};

const names = new Map(Object.keys(LANGUAGES).map((name) => [name, name]));
for (const [name, aliases] of Object.entries(ALIASES)) {
  for (const alias of aliases.split(" ")) names.set(alias, name);
}

/** A language by one of its names, in any case; undefined if it isn't known. */
export function language(name) {
  return LANGUAGES[names.get(name.toLowerCase())];
}
