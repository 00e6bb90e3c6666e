"""Checks of a page's accessibility: names of all controls, unique ids, text with enough contrast."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

# ruff: noqa: E501
_UNNAMED = """() => {
  const visible = (each) => each.checkVisibility();
  const text = (id) => document.getElementById(id)?.textContent.trim() ?? "";
  const name = (each) =>
    each.getAttribute("aria-label")
    || (each.getAttribute("aria-labelledby") ?? "").split(" ").map(text).join("")
    || [...(each.labels ?? [])].map((label) => label.textContent.trim()).join("")
    || (["BUTTON", "A", "SUMMARY", "H1", "H2", "H3"].includes(each.tagName) ? each.textContent.trim() : "");
  const controls = "input, select, textarea, button, a, summary, h1, h2, h3, section, form[aria-labelledby], [role=meter], "
    + "[role=progressbar], [role=img], [role=region]";
  const found = [...document.querySelectorAll(controls)].filter(visible).filter((each) => !name(each));
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  const twice = ids.filter((id, place) => ids.indexOf(id) !== place);
  const described = [...document.querySelectorAll("[aria-describedby]")].filter((each) => !text(each.getAttribute("aria-describedby")));
  const images = [...document.querySelectorAll("img:not([alt])")];
  const odd = [...document.querySelectorAll("[tabindex]")].filter((each) => each.tabIndex > 0);
  const valueless = [...document.querySelectorAll("[role=meter], [role=progressbar]")].filter((each) => !each.hasAttribute("aria-valuenow"));
  return [...found, ...described, ...images, ...odd, ...valueless].map((each) => each.outerHTML.slice(0, 200)).concat(twice);
}"""

_CONTRASTS = """() => {
  const numbers = (color) => (color.match(/[\\d.]+/g) ?? []).map(Number);
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const color = numbers(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const own = (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")].filter((each) => own(each) && each.checkVisibility()).map((each) => {
    const style = getComputedStyle(each);
    const [front, back] = [luminance(numbers(each instanceof SVGElement ? style.fill : style.color)), luminance(ground(each))];
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    return [ratio, each.tagName + " " + each.className + ": " + each.textContent.slice(0, 60)];
  });
}"""


def unnamed(page: Page) -> list[str]:
    """Visible controls without a name, and other breaches, by their HTML."""
    found: list[str] = page.evaluate(_UNNAMED)
    return found


def contrasts(page: Page, least: float) -> list[Any]:
    """Texts that stand out less from their ground, with their contrast (WCAG 2.2, 1.4.3)."""
    found = page.evaluate(_CONTRASTS)
    assert len(found) > 20, "the page has texts"
    return [each for each in found if each[0] < least]
