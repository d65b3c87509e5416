import { start } from "./explorer.js";

start(document.getElementById("explorer"));
