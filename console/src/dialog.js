// Questions before something is done. One at a time, as the browser's own modal dialog: it keeps the focus, Escape
// closes it, and the focus goes back to where it was.

import { html, useEffect, useRef, useState, Problem } from './ui.js';

let open = null;

/** Asks; `run` is given what the fields have, and the dialog stays open with the reason if it fails. */
export function ask(question) {
  if (open) open(question);
}

/** Nothing is asked any more: who was asked may not see it now. */
export function dismiss() {
  if (open) open(null);
}

export function Dialogs() {
  const [question, set] = useState(null);
  open = set;
  if (!question) return null;
  return html`<${Question} key=${question.title} question=${question} close=${() => set(null)} />`;
}

function Question({ question, close }) {
  const { title, says, fields = [], action, dangerous, type, run } = question;
  const [values, setValues] = useState(() => Object.fromEntries(fields.map((field) => [field.name, field.value || ''])));
  const [typed, setTyped] = useState('');
  const [state, setState] = useState({ busy: false, error: null });
  const element = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    const first = element.current.querySelector('input, select') || element.current.querySelector('.cancel');
    if (first) first.focus();
    return () => before && before.focus && before.focus();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    setState({ busy: true, error: null });
    try {
      await run(values);
      close();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const ready = !type || typed === type;
  return html`<dialog ref=${element} aria-labelledby="question" onCancel=${(event) => { event.preventDefault(); close(); }}>
    <form onSubmit=${submit}>
      <h2 id="question">${title}</h2>
      <div class="says">${says}</div>
      ${fields.map((field) => html`<label key=${field.name}>${field.label}
        <input name=${field.name} value=${values[field.name]} placeholder=${field.placeholder} required=${field.required}
          pattern=${field.pattern} title=${field.hint} autocomplete="off" spellcheck="false"
          onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })} />
        ${field.hint ? html`<small>${field.hint}</small>` : null}</label>`)}
      ${type ? html`<label>Type <b>${type}</b> to go on
        <input name="typed" value=${typed} autocomplete="off" spellcheck="false"
          onInput=${(event) => setTyped(event.target.value)} /></label>` : null}
      <${Problem} error=${state.error} />
      <p class="buttons">
        <button type="button" class="cancel" onClick=${close}>Cancel</button>
        <button type="submit" class=${dangerous ? 'danger' : 'primary'} disabled=${!ready || state.busy}>
          ${state.busy ? 'Working...' : action}</button>
      </p>
    </form></dialog>`;
}
