"""The pages for operators: printed_commands.py beside this file says what is checked of commands that cannot run here."""

import unittest

import printed_commands
from environment import ROOT, expect, project_version, temporary_path
from pages import blocks

PAGES = {path.name: path.read_text(encoding="ascii") for path in
         (ROOT / "README.md", ROOT / "docs/python.md", *sorted((ROOT / "docs/deploy").glob("*.md")))}
# Commands that do not work, and what is said of them.
FAULTS = (
    ("kubectl aply -k deploy/kubernetes/base/loader", "kubectl has no command"),
    ("kubectl apply -k deploy/kubernetes/overlays/big/teacher", "deploy/kubernetes/overlays/big/teacher"),
    ("kubectl -n taopd rollout status deployment/teachers", "there is no Deployment teachers"),
    ("kubectl -n taopd rollout stat deployment/teacher", "stat is not a known kind"),
    ("kubectl -n tapod logs job/trainer-x", "the namespace is not tapod"),
    ("kubectl -n taopd logs --folow job/trainer-x", "kubectl logs has no flag --folow"),
    ("kubectl -n taopd port-forward job/trainer-x 9090", "Job trainer-x has no port 9090"),
    ("kubectl -n taopd cp math loader:/tmp/math", "loader has no volume for /tmp/math"),
    ("kubectl -n taopd wait --for=condition=Ready job/download", "a Job has no condition Ready"),
    ("kubectl -n taopd get pods -l app.kubernetes.io/name=teacher", "no pod has the label app.kubernetes.io/name=teacher"),
    ("kubectl -n taopd patch job trainer-x -p '{\"spec\":{\"suspended\":true}}'", "suspended"),
    ("kubectl -n taopd create secret generic teacher-tls --from-file=tls.crt=a --from-file=ca.crt=b",
     "the Secret teacher-tls has no tls.key"),
    ("kubectl -n taopd create secret generic teacher-tsl --from-file=tls.crt=a", "no pod mounts the Secret teacher-tsl"),
    ("sudo systemctl enable --now taopd-trainer", "there is no unit taopd-trainer"),
    ("sudo systemctl reenact taopd-teacher", "systemctl has no command reenact"),
    ("sudo systemctl enable --nwo taopd-teacher", "systemctl has no flag --nwo"),
    ("journalctl -fQ taopd-teacher", "journalctl has no flag -Q"),
    ("skopeo copy docker-archiv:a.tar docker://b", "skopeo knows no docker-archiv:"),
    ("skopeo copy --sign-by-sigstore-key a docker-archive:a.tar docker://b", "skopeo has no flag --sign-by-sigstore-key"),
    ("podman run --readonly taopd-teacher:0.1.0-cpu", "podman has no flag --readonly"),
    ("podman run taopd-teacher:0.1.0-cpu --modle /models", "taopd-teacher has no flag --modle"),
    ("sudo cp /opt/taopd/deploy/systemd/*.units /etc", "there is no /opt/taopd/deploy/systemd/*.units"),
    ("/opt/taopd/bin/taopd-trainer trian --config=a", "taopd-trainer has no command trian"),
    ("taopd-trainer quickstart --commpare all", "taopd-trainer has no flag --commpare"),
    ("deploy/experiment x --overlai laptop", "--overlai is not in its --help"),
    ("deploy/images/build --push", "--push is not in its --help"),
    ("sudo apt instal ./taopd_0.1.0_amd64.deb", "apt has no command instal"),
    ("python deploy/examples/trl_teacher/distil.py --techer x", "distil.py has no flag --techer"),
    ("tar --extrakt -f a.tar", "tar has no flag --extrakt"),
    ("frobnicate --all", "nothing is known of frobnicate"),
    ("head -c 3 /dev/urandom | frobnicate", "nothing is known of frobnicate"),
    ("tar -xzf taopd-9.9.9-cpu-x86_64.tar.gz", "taopd-9.9.9 is of another version"),
)


class PrintedCommandsTest(unittest.TestCase):
    maxDiff = None

    def test_pages(self):
        self.assertGreater(sum(len(blocks(text, "")) for text in PAGES.values()), 20)
        for page, text in PAGES.items():
            with self.subTest(page):
                self.assertEqual(list(printed_commands.page_findings(text)), [])

    def test_an_archive_is_upgraded(self):
        """The links of installation and upgrade, in a folder in the place of /opt with two unpacked archives."""
        opt, old = temporary_path(self), project_version()
        for version in (old, "9.9.9"):
            (opt / f"taopd-{version}-cpu-x86_64").mkdir()
        for page, version in (("one-machine.md", old), ("operations.md", "9.9.9")):
            [block] = [block for block in blocks(PAGES[page], "") if " /opt/taopd\n" in block]
            for words in printed_commands.commands(block):
                if words[0] in ("mv", "ln"):
                    expect(0, [word.replace("/opt", str(opt)).replace(old, version) for word in words], cwd=opt)
            self.assertEqual((opt / "taopd").resolve().name, f"taopd-{version}-cpu-x86_64")

    def test_planted_faults(self):
        for command, said in FAULTS:
            with self.subTest(command):
                self.assertIn(said, "\n".join(printed_commands.page_findings(f"```\n{command}\n```\n")))

    def test_planted_faults_of_files(self):
        unit = "`systemctl edit taopd-teacher`\n```\n[Service]\n{}\n```\n"
        self.assertEqual(list(printed_commands.page_findings(unit.format("LoadCredential=a:/b"))), [])
        self.assertIn("LoadCredentail", "".join(printed_commands.page_findings(unit.format("LoadCredentail=a:/b"))))
        flag = "ExecStart=\nExecStart=/opt/taopd/bin/taopd-trainer train --confg=x"
        self.assertIn("taopd-trainer has no flag --confg", "".join(printed_commands.page_findings(unit.format(flag))))
        yaml = "```\nrule_files: []\nscrape_configs:\n  - job_name: a\n    {}: []\n```\n"
        self.assertEqual(list(printed_commands.page_findings(yaml.format("static_configs"))), [])
        self.assertIn("statik_configs", "".join(printed_commands.page_findings(yaml.format("statik_configs"))))
