// Browsers forbid workers to pages opened from disk, and the theme searches in one. There its script runs in a hidden
// frame instead. (The theme's `offline` plugin would load such a stand-in from another host; it does not where the
// site has a script of this name.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(inside);
        inside.document.head.append(script);
      });
    }
    async postMessage(data) {
      const inside = await this.loaded;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
  };
}
