// One picture from the camera, or from the phone's own camera where a browser does not let pages have it.

import { byId, show } from "./dom.js";

let stream = null;

export function setUp(onPicture) {
  const dialog = byId("camera");
  byId("ask-camera").addEventListener("click", () => open(dialog, onPicture));
  byId("camera-close").addEventListener("click", () => dialog.close());
  byId("camera-take").addEventListener("click", () => take(dialog, onPicture));
  dialog.addEventListener("close", () => {
    for (const track of stream?.getTracks() ?? []) track.stop();
    stream = null;
    byId("camera-view").srcObject = null;
  });
}

async function open(dialog, onPicture) {
  if (!navigator.mediaDevices?.getUserMedia) {
    // Browsers give the camera to pages of this machine only, or over https; a phone can still take a photo.
    const input = Object.assign(document.createElement("input"), { type: "file", accept: "image/*" });
    input.setAttribute("capture", "environment");
    input.addEventListener("change", () => input.files.length && onPicture(input.files[0]));
    input.click();
    return;
  }
  show(byId("camera-problem"), false);
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

function take(dialog, onPicture) {
  const view = byId("camera-view");
  if (!view.videoWidth) return;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [view.videoWidth, view.videoHeight];
  canvas.getContext("2d").drawImage(view, 0, 0);
  const name = `camera ${new Date().toTimeString().slice(0, 8)}.jpg`;
  canvas.toBlob((blob) => { onPicture(new File([blob], name, { type: "image/jpeg" })); dialog.close(); }, "image/jpeg", 0.92);
}
