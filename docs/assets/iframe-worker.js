// Browsers refuse workers on pages that are opened from a file. The search then runs in a hidden frame instead: it takes the messages
// that its worker would get, and what it posts is given to the page.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      this.frame.contentWindow.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.frame.contentDocument.createElement("script")
      script.src = address
      this.loaded = new Promise(done => script.addEventListener("load", done))
      this.frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
