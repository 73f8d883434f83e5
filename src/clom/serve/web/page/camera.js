// Pictures from the camera, or from the phone's own camera where a browser does not let pages have it.

import { byId, count, show } from "./dom.js";

let stream = null;
let use = () => {};
let several = false;
let taken = 0;

export function setUp() {
  const dialog = byId("camera");
  byId("camera-close").addEventListener("click", () => dialog.close());
  byId("camera-take").addEventListener("click", () => take(dialog));
  dialog.addEventListener("close", () => {
    for (const track of stream?.getTracks() ?? []) track.stop();
    stream = null;
    byId("camera-view").srcObject = null;
  });
}

/** Give pictures to `onPicture`: one, or as many as are taken before the camera is closed. */
export async function open(onPicture, { many = false } = {}) {
  [use, several, taken] = [onPicture, many, 0];
  if (!navigator.mediaDevices?.getUserMedia) {
    // Browsers give the camera to pages of this machine only, or over https; a phone can still take a photo.
    const input = Object.assign(document.createElement("input"), { type: "file", accept: "image/*" });
    input.setAttribute("capture", "environment");
    input.addEventListener("change", () => input.files.length && use(input.files[0]));
    input.click();
    return;
  }
  const dialog = byId("camera");
  show(byId("camera-problem"), false);
  byId("camera-close").textContent = several ? "Done" : "Close";
  byId("camera-said").textContent = several ? "Take pictures from several sides and in different light." : "";
  dialog.showModal();
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    byId("camera-view").srcObject = stream;
  } catch (problem) {
    byId("camera-problem").textContent = problem.name === "NotAllowedError"
      ? "The camera is not allowed. The browser’s settings for this page can change that."
      : "No camera was found.";
    show(byId("camera-problem"));
  }
}

function take(dialog) {
  const view = byId("camera-view");
  if (!view.videoWidth) return;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [view.videoWidth, view.videoHeight];
  canvas.getContext("2d").drawImage(view, 0, 0);
  taken += 1;
  const name = `camera ${new Date().toTimeString().slice(0, 8)}${several ? ` ${taken}` : ""}.jpg`;
  canvas.toBlob((blob) => {
    use(new File([blob], name, { type: "image/jpeg" }));
    if (several) byId("camera-said").textContent = `${count(taken, "picture")} taken.`;
    else dialog.close();
  }, "image/jpeg", 0.92);
}
