"""deploy/tools/docs_site: the site is whole, has a search, loads nothing from elsewhere, and a broken link ends the build."""

import html.parser
import json
import pathlib
import shutil
import tempfile
import unittest
import urllib.parse

from environment import ROOT, expect, temporary_path, tool

from pages import read_pages


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, its anchors, and the depth to which its lists are nested."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.depth = self.deepest = 0
        self.in_article = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if "src" in found or (tag == "link" and found.get("rel") == "stylesheet"):
            self.loaded.append(found.get("src") or found["href"])
        if tag == "article":
            self.in_article = True
        if tag == "ul" and self.in_article:
            self.depth += 1
            self.deepest = max(self.deepest, self.depth)

    def handle_endtag(self, tag):
        if tag == "ul" and self.in_article:
            self.depth -= 1
        if tag == "article":
            self.in_article = False


def build(output, root=ROOT, code=0):
    return expect(code, [ROOT / "deploy/tools/docs_site", "-o", output, "--root", root])


class DocsSiteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tool("mkdocs")  # or the tests are skipped
        cls.site = temporary_path(cls) / "site"
        build(cls.site)
        cls.pages = {path.relative_to(cls.site): Page(path) for path in cls.site.rglob("*.html")}

    def test_every_page_is_there(self):
        for page in read_pages(ROOT):
            name = pathlib.Path(page).with_suffix(".html")
            name = name.with_name("index.html") if name.name == "README.html" else name
            self.assertIn(name, self.pages, page)

    def test_search_finds_pages(self):
        index = json.loads((self.site / "search/search_index.json").read_text(encoding="utf-8"))
        texts = {entry["location"].partition("#")[0] for entry in index["docs"]}
        self.assertIn("docs/objectives.html", texts)
        self.assertGreater(len(texts), 25)
        self.assertTrue(any("importance ratio" in entry["text"] for entry in index["docs"]))

    def test_links_and_anchors(self):
        for name, page in self.pages.items():
            for link in page.links:
                url = urllib.parse.urlsplit(link)
                if url.scheme or name.name == "404.html":
                    continue
                target = (self.site / name).parent / urllib.parse.unquote(url.path) if url.path else self.site / name
                target = target / "index.html" if target.is_dir() else target
                self.assertTrue(target.exists(), f"{name}: {link}")
                if url.fragment and target.suffix == ".html":
                    anchors = self.pages[target.resolve().relative_to(self.site.resolve())].anchors
                    self.assertIn(urllib.parse.unquote(url.fragment), anchors | {"__skip"}, f"{name}: {link}")

    def test_nothing_is_loaded_from_elsewhere(self):
        for name, page in self.pages.items():
            self.assertEqual([path for path in page.loaded if "//" in path], [], name)

    def test_nested_lists_stay_nested(self):
        self.assertEqual(self.pages[pathlib.Path("docs/deploy/runbook.html")].deepest, 2)

    def test_broken_links_end_the_build(self):
        for link, problem in (("docs/no-such-page.md", "no-such-page.md"), ("docs/objectives.md#no-such-part", "no-such-part")):
            with tempfile.TemporaryDirectory() as directory:
                root = pathlib.Path(directory, "tree")
                for page in read_pages(ROOT):
                    (root / page).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / page, root / page)
                shutil.copytree(ROOT / "docs/images", root / "docs/images")
                with open(root / "README.md", "a", encoding="utf-8") as readme:
                    readme.write(f"\n[broken]({link})\n\n## One / two\n\n[not broken on GitHub](#one--two)\n")
                done = build(pathlib.Path(directory, "site"), root, code=1)
                self.assertIn(problem, done.stdout + done.stderr)
                self.assertNotIn("one--two", done.stdout + done.stderr)

    def test_no_other_directory_is_replaced(self):
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "mine").touch()
            done = build(pathlib.Path(directory), code=1)
            self.assertIn("holds something other", done.stderr)
            self.assertTrue(pathlib.Path(directory, "mine").exists())
