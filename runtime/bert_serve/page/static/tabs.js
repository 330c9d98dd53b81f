// Tabs after the WAI-ARIA pattern: one in the tab order, arrow keys move, the panel of the chosen one is shown.

/**
 * Make buttons with the role "tab" choose their panels.
 *
 * @param {HTMLElement} list the element with the role "tablist"
 * @param {function(string): void} onSelect told the id of the chosen tab
 */
export function makeTabs(list, onSelect = () => {}) {
  const tabs = [...list.querySelectorAll('[role="tab"]')];

  function select(chosen, focus = false) {
    for (const tab of tabs) {
      const selected = tab === chosen;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !selected;
    }
    if (focus) chosen.focus();
    onSelect(chosen.id);
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) select(tab);
  });
  list.addEventListener("keydown", (event) => {
    const index = tabs.indexOf(event.target);
    const next = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (index < 0 || next === undefined) return;
    event.preventDefault();
    select(tabs.at(next % tabs.length), true);
  });
  select(tabs[0]);
}
