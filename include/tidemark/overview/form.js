const form = document.getElementById("form"), answer = document.getElementById("answer");
const button = form.querySelector("button");
let sent = null;

function entered(field) {
  const controls = [...field.querySelectorAll("input, select, textarea")], text = controls[0].value;
  switch (field.dataset.kind) {
    case "switch": return controls[0].checked;
    case "choices": return controls.filter(box => box.checked).map(box => box.value);
    case "lines": return text.split("\n").map(line => line.trim()).filter(Boolean);
    case "number": return text === "" ? null : Number(text);
    default: return text === "" && field.dataset.nullable ? null : text;
  }
}

function say(text) {
  answer.textContent = text;
  answer.hidden = !text;
}

form.addEventListener("submit", async event => {
  event.preventDefault();
  say("");
  button.disabled = true;
  const conf = {};
  for (const field of form.querySelectorAll("[data-kind]")) conf[field.dataset.name] = entered(field);
  const run = form.dataset.run, body = JSON.stringify({ dag_run_id: run, logical_date: null, conf });
  sent ??= body;
  try {
    const headers = { "Content-Type": "application/json", Accept: "application/json" };
    // A proxy that wants a new login would answer with its own page.
    const response = await fetch(form.dataset.runs, { method: "POST", headers, body, redirect: "error" });
    const said = await response.json().catch(() => ({}));
    // The run of this form exists: the answer to an earlier request was lost.
    const exists = response.status === 409;
    if (exists && body !== sent) {
      say("This form has started its run already, with values that you sent before. Look at it on the page of the DAG.");
    } else if (exists || (response.ok && said.dag_run_id === run)) {
      return leave(form.dataset.dag + "/runs/" + encodeURIComponent(run));
    } else if (response.ok || response.status >= 500) {
      throw new Error("no answer of Airflow");
    } else {
      // Nothing was started, so other values may be sent.
      sent = null;
      const detail = said.detail;
      say(response.status === 401 ? "Airflow does not know any more who you are. Log in again in another tab, then press Trigger again."
        : response.status === 403 ? "You may not trigger this DAG. Ask somebody who may."
        : "Airflow refuses it: " + (typeof detail === "string" ? detail : JSON.stringify(detail ?? response.status)));
    }
  } catch {
    say("Airflow did not answer. Press Trigger again: this form starts one run, however often it is sent.");
  }
  button.disabled = false;
});
