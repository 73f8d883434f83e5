// Pictures in a zip file, unpacked here in the browser. Names in it are only read, never used as paths.

const MOST_FILES = 5000;
const MOST_BYTES = 1e9; // unpacked, as much as a lesson may have
const MOST_BYTES_EACH = 4e7;
const MOST_LISTED = 16e6; // bytes of the list of files
const TYPES = { jpg: "image/jpeg", jpeg: "image/jpeg", png: "image/png", webp: "image/webp", gif: "image/gif", bmp: "image/bmp", tif: "image/tiff", tiff: "image/tiff" };

export const isZip = (file) => file.name.toLowerCase().endsWith(".zip");

/** Folder name -> the pictures in it. Throws an error that can be shown if the file is no zip file, or too much. */
export async function picturesInZip(file) {
  const entries = (await list(file)).filter((entry) => entry.folder && TYPES[entry.ending]);
  const total = entries.reduce((sum, entry) => sum + entry.size, 0);
  if (entries.length > MOST_FILES) throw new Error(`${file.name} has ${entries.length} pictures; ${MOST_FILES} is the most.`);
  if (total > MOST_BYTES) throw new Error(`${file.name} would unpack to ${(total / 1e9).toFixed(1)} GB; 1 GB is the most.`);
  const folders = new Map();
  for (const entry of entries) {
    const picture = await unpack(file, entry);
    if (picture) folders.set(entry.folder, [...(folders.get(entry.folder) ?? []), picture]);
  }
  if (!folders.size) throw new Error(`${file.name} has no folders of pictures. Pack one folder for each class.`);
  return folders;
}

async function list(file) {
  const broken = new Error(`${file.name} cannot be read as a zip file.`);
  const tail = new DataView(await file.slice(Math.max(0, file.size - 65557)).arrayBuffer());
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw broken;
  const [length, start] = [tail.getUint32(end + 12, true), tail.getUint32(end + 16, true)];
  if (length > MOST_LISTED || start + length > file.size) throw broken;
  const view = new DataView(await file.slice(start, start + length).arrayBuffer());
  const text = new TextDecoder();
  const found = [];
  for (let at = 0; at + 46 <= view.byteLength && view.getUint32(at, true) === 0x02014b50;) {
    const [name, extra, comment] = [28, 30, 32].map((place) => view.getUint16(at + place, true));
    if (at + 46 + name > view.byteLength) throw broken;
    const parts = text.decode(new Uint8Array(view.buffer, at + 46, name)).replaceAll("\\", "/").split("/");
    const hidden = parts.some((part) => part.startsWith(".") || part === "__MACOSX");
    const last = parts.at(-1);
    if (last && !hidden) {
      found.push({
        folder: parts.at(-2) ?? "", last, ending: last.split(".").at(-1).toLowerCase(),
        encrypted: view.getUint16(at + 8, true) & 1, method: view.getUint16(at + 10, true),
        packed: view.getUint32(at + 20, true), size: view.getUint32(at + 24, true), at: view.getUint32(at + 42, true),
      });
    }
    at += 46 + name + extra + comment;
  }
  return found;
}

/** The picture, or null if it cannot be unpacked. It never gets larger than the list says. */
async function unpack(file, entry) {
  if (entry.encrypted || ![0, 8].includes(entry.method) || entry.size > MOST_BYTES_EACH) return null;
  const header = await file.slice(entry.at, entry.at + 30).arrayBuffer();
  if (header.byteLength < 30) return null;
  const head = new DataView(header);
  const start = entry.at + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const packed = file.slice(start, start + entry.packed);
  const named = (parts) => new File(parts, entry.last, { type: TYPES[entry.ending] });
  if (entry.method === 0) return named([packed]);
  const parts = [];
  let size = 0;
  try {
    const reader = packed.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      size += value.length;
      if (size > entry.size) { await reader.cancel(); return null; }
      parts.push(value);
    }
  } catch { return null; }
  return named(parts);
}
