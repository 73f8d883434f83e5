// The API's documentation from its own description; nothing is fetched from elsewhere.

import { byId, make } from "./dom.js";

const place = location.origin;
byId("example").textContent = [
  `curl -F pictures=@garden.jpg '${place}/predict?top=3'`,
  `curl -H 'Content-Type: image/jpeg' --data-binary @garden.jpg ${place}/predict`,
  `curl -F name=pets -F labels=cat -F pictures=@1.jpg -F labels=dog -F pictures=@2.jpg ${place}/tasks`,
].join("\n");

const description = await (await fetch("/openapi.json")).json();
byId("about").textContent = description.info.summary;

const resolve = (schema) => (schema?.$ref ? description.components.schemas[schema.$ref.split("/").at(-1)] : schema);

function kind(schema) {
  const known = resolve(schema) ?? {};
  if (known.anyOf) return known.anyOf.map(kind).join(" or ");
  if (known.type === "array") return `list of ${kind(known.items)}`;
  return known.format === "binary" ? "file" : (known.title && known.properties ? known.title : known.type ?? "anything");
}

function table(caption, rows) {
  return rows.length ? make("div", { class: "scroll", tabindex: "0" }, make("table", {}, make("caption", {}, caption),
    make("tbody", {}, rows.map(([name, type, text]) => make("tr", {}, make("th", { scope: "row" }, make("code", {}, name)), make("td", {}, type), make("td", {}, text)))))) : null;
}

const fields = (schema) => Object.entries(resolve(schema)?.properties ?? {}).map(([name, field]) => [name, kind(field), resolve(field)?.description ?? field.description ?? ""]);

for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, route] of Object.entries(methods)) {
    const parameters = (route.parameters ?? []).map((each) => [each.name, kind(each.schema), each.description ?? each.schema.description ?? ""]);
    const form = route.requestBody?.content["multipart/form-data"]?.schema;
    const good = Object.entries(route.responses).find(([status]) => status.startsWith("2"));
    const answer = good?.[1].content?.["application/json"]?.schema;
    const example = resolve(answer)?.examples?.[0];
    byId("routes").append(make("section", { class: "panel route" },
      make("h2", {}, make("span", { class: `verb ${method}` }, method.toUpperCase()), " ", make("code", {}, path)),
      make("p", {}, route.summary ?? ""),
      route.security ? make("p", { class: "hint" }, "Needs the token as “Authorization: Bearer …” if the server was started with one.") : null,
      table("Parameters", parameters), form ? table("Form", fields(form)) : null,
      form ? make("p", { class: "hint" }, route.requestBody.description) : null,
      answer ? make("details", {}, make("summary", {}, `Answer, status ${good[0]}`), table(`Fields of ${kind(answer)}`, fields(answer))) : null,
      example ? make("details", {}, make("summary", {}, "Example"), make("pre", { tabindex: "0" }, make("code", {}, JSON.stringify(example, null, 2)))) : null));
  }
}
