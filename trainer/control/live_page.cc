#include "trainer/control/live_page.h"

#include <absl/strings/escaping.h>

#include "common/base/status.h"
#include "common/io/sha256.h"

namespace taopd {
namespace {

constexpr char kScript[] = R"js(
"use strict";
const text = (id, value) => { document.getElementById(id).textContent = value; };
const duration = (s) => s < 90 ? Math.round(s) + " s" : s < 5400 ? Math.round(s / 60) + " min"
                                                                 : (s / 3600).toFixed(1) + " h";
// Reloads the report after a new step, at most every ten seconds, and keeps its scroll position.
let shown = {step: 0, time: Date.now()};
function showReport(step) {
  if (step === shown.step || Date.now() - shown.time < 10000) return;
  shown = {step: step, time: Date.now()};
  const frame = document.getElementById("report");
  const position = frame.contentWindow.scrollY;
  frame.onload = () => frame.contentWindow.scrollTo(0, position);
  frame.src = "report?" + Date.now();
}
async function refresh() {
  try {
    const status = await (await fetch("status")).json();
    document.title = status.step + "/" + status.total_steps + " " + status.run_name;
    text("run", status.run_name);
    text("phase", status.phase.replaceAll("_", " "));
    document.getElementById("pause").disabled = status.phase === "paused";
    document.getElementById("resume").disabled = status.phase !== "paused";
    text("step", status.step + " of " + status.total_steps);
    text("eta", status.step > 0 ? duration(status.eta_seconds) : "");
    const loss = status.metrics["loss/mean"];
    text("loss", loss == null ? "" : loss.toPrecision(4));
    text("checkpoint", status.last_checkpoint);
    const peak = status.metrics["memory/device_peak_gb"] ?? status.metrics["memory/host_peak_gb"];
    text("memory", (peak == null ? "" : peak.toFixed(1) + " GiB at most so far") +
                   (status.memory_plan_gb > 0 ? (peak == null ? "" : ", ") +
                    status.memory_plan_gb.toFixed(1) + " GiB planned" : ""));
    const t = status.teacher;
    document.getElementById("has-teacher").hidden = t.name === "";
    text("teacher", (t.waiting ? "not answering, " : "answering, ") + t.requests + " requests, " +
                    t.retries + " retries, " + t.failures + " failures, " + t.in_flight +
                    " in flight, " + t.queued + " queued");
    document.getElementById("progress").max = status.total_steps;
    document.getElementById("progress").value = status.step;
    text("note", status.storage_problem === "" ? "" : "Not saved: " + status.storage_problem);
    showReport(status.step);
  } catch (error) {
    text("note", "The trainer does not answer.");
  }
}
async function ask(action) {
  const headers = {"X-Taopd-Control": "1"};
  const token = document.getElementById("token");
  if (token && token.value) headers["Authorization"] = "Bearer " + token.value;
  try {
    const reply = await fetch(action, {method: "POST", headers: headers});
    text("answer", action + ": " + (reply.ok ? await reply.text() : (await reply.json()).error));
    refresh();
  } catch (error) {
    text("answer", action + ": no answer");
  }
}
for (const button of document.querySelectorAll("button")) {
  button.addEventListener("click", () => {
    if (button.id !== "stop" || confirm("Save and end the run?")) ask(button.id);
  });
}
setInterval(refresh, 2000);
refresh();
)js";

constexpr char kPage[] = R"html(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>taopd-trainer</title>
<style>
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 16px 24px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 8px 0; }
[hidden] { display: none; } dt { opacity: 0.7; } dd { margin: 0; overflow-wrap: anywhere; }
progress { width: 100%; } iframe { border: 0; width: 100%; height: 75vh; }
button, input { font: inherit; } #note { color: #b3261e; }
</style></head><body><main>
<h1 id="run">taopd-trainer</h1>
<progress id="progress" max="1" value="0" aria-label="Steps"></progress>
<dl><dt>Phase</dt><dd id="phase"></dd><dt>Step</dt><dd id="step"></dd>
<dt>Time left</dt><dd id="eta"></dd><dt>Loss</dt><dd id="loss"></dd>
<dt>Memory</dt><dd id="memory"></dd><dt>Checkpoint</dt><dd id="checkpoint"></dd></dl>
<dl id="has-teacher" hidden><dt>Teacher</dt><dd id="teacher"></dd></dl>
<p><button id="pause">Pause</button> <button id="resume" disabled>Resume</button>
<button id="save">Save</button> <button id="stop">Stop</button>
)html";

constexpr char kTokenBox[] =
    R"html(<label>Token <input id="token" type="password" autocomplete="off"></label>
)html";

constexpr char kPageEnd[] = R"html(<span id="answer" role="status"></span></p>
<p id="note" role="alert"></p></main>
<iframe id="report" src="report" title="Report"></iframe>
<script>)html";

}  // namespace

std::string LivePage(bool asks_for_token) {
  return Concat(kPage, asks_for_token ? kTokenBox : "", kPageEnd, kScript,
                "</script></body></html>\n");
}

std::string LivePageSecurityPolicy() {
  const std::string digest = absl::HexStringToBytes(Sha256Hex(kScript));
  return Concat("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-",
                absl::Base64Escape(digest),
                "'; connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
                "frame-ancestors 'none'");
}

}  // namespace taopd
