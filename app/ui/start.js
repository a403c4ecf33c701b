// Loads the page's modules once the browser has painted a frame, which they would delay.

requestAnimationFrame(() =>
  setTimeout(() => {
    document.head.append(document.getElementById("modules").content);
    import("./main.js");
  }),
);
