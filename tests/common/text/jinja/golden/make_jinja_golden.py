"""Writes cases.jsonl next to this script: templates with the text that Python's jinja2 gives.

Versions used: jinja2 3.1.6, Python 3.11, set up as transformers 5.17 does for chat templates. Rows:
template, context, options, and expected or expect_error.
"""

import datetime
import itertools
import json
import pathlib

import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(trim):
    env = ImmutableSandboxedEnvironment(trim_blocks=trim, lstrip_blocks=trim, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime(2025, 7, 10, 12).strftime
    return env


CONTEXT = {
    "s": "Hello, World",
    "u": "na\u00efve \u00c9t\u00e9 \u4f60\u597d \U0001f600 stra\u00dfe",
    "sp": " \t\u00a0 pad \u2003\n",
    "lines": "one\ntwo\r\n\nthree\u2028four",
    "empty": "",
    "n": 7,
    "neg": -3,
    "f": 2.5,
    "t": True,
    "none": None,
    "nums": [3, 1, 2, 2],
    "words": ["banana", "Apple", "cherry"],
    "d": {"b": 1, "a": [1, {"x": None}], "C": "\u00e9"},
    "people": [
        {"name": "Ann", "age": 41, "tags": ["x", "y"], "active": True},
        {"name": "bob", "age": 7, "tags": [], "active": False},
        {"name": "Cy", "age": 41, "tags": ["z"]},
    ],
    "quote": "it's \"quoted\" \\ \x07 \u200b",
    "html": "<b>&'\"</b>",
}

EXPRESSIONS = """
s|upper ~ s|lower ~ s|title ~ s|capitalize
u|upper
u|lower
u|title
u.title()
u.capitalize()
u|length
u[0] ~ u[-1] ~ u[3:8] ~ u[::-1]
u[::3]
'abcdef'[4:1:-2] ~ 'abc'[5:] ~ 'abc'[-9:2] ~ 'abc'[2:0]
'abc'[7]
sp|trim ~ '|' ~ sp.lstrip() ~ '|' ~ sp.rstrip() ~ '|'
s.strip('Hd') ~ s.lstrip('eH') ~ s.rstrip('dl')
lines.splitlines()
lines.split()
lines.split('\\n')
lines.split('\\n', 1)
s.split('o') ~ s.rsplit('o', 1)|string ~ ' a  b '.split(' ')|string
' a b  c '.split(none, 1)
' a b  c '.rsplit(none, 1)
'a,b,c'.partition(',') ~ 'a,b,c'.rpartition(',')|string ~ 'abc'.partition('x')|string
s.find('o') ~ s.find('zz') ~ s.rfind('o') ~ s.index('W') ~ u.find('\u597d')
s.count('l') ~ 'aaa'.count('aa') ~ ''.count('')
s.index('zz')
s.startswith('Hell') ~ s.endswith(('x', 'ld')) ~ s.startswith('ello', 1) ~ s.startswith('')
s.replace('l', 'L') ~ s.replace('l', 'L', 1) ~ 'ab'.replace('', '-')
s|replace('o', '0', 1)
'%s and %d and %05.2f and %r %%' % ('x', 3, 2.5, 'q')
'%s' % n
'%(a)s-%(b)s'|format(a=1, b='z')
'%s %s'|format('a', 2)
'{} {1} {name}'.format('a')
'{} {}'.format('a', 2) ~ '{0}{1}{0}'.format('x', 'y') ~ '{name}'.format(name='N')
'a-b'.join(['1', '2']) ~ ','.join('abc')
','.join([1])
'abc'.isalpha() ~ 'ab1'.isalpha() ~ '12'.isdigit() ~ ''.isdigit() ~ ' \\t'.isspace() ~ 'aB'.islower() ~ 'AB1'.isupper() ~ 'a1'.isalnum()
'abc'.removeprefix('a') ~ 'abc'.removesuffix('c') ~ 'abc'.removesuffix('x')
lines|indent(3) ~ '#' ~ lines|indent(2, true) ~ '#' ~ lines|indent(2, false, true)
'a\\n\\nb'|indent(blank=true, first=true, width=1)
none|indent
nums|join(', ') ~ nums|join ~ people|join('+', attribute='name') ~ d|join
nums|sort ~ nums|sort(reverse=true)|string ~ words|sort|string ~ words|sort(case_sensitive=true)|string
people|sort(attribute='age')|map(attribute='name')|join(',')
people|sort(attribute='age,name', reverse=true)|map(attribute='name')|join(',')
people|map(attribute='tags.0', default='-')|list
people|map(attribute='tags')|map('length')|list
people|map(attribute='missing')|list
words|map('upper')|join(' ')
words|map('replace', 'a', '4')|list
nums|map('string')|list ~ ['1', '2.5', 'x', '']|map('int')|list|string
people|selectattr('active')|map(attribute='name')|list
people|selectattr('active', 'defined')|map(attribute='name')|list
people|rejectattr('active')|map(attribute='name')|list
people|selectattr('age', '>', 10)|list|length
people|selectattr('name', 'in', ['Cy', 'bob'])|map(attribute='name')|list
people|selectattr('age', 'equalto', 41)|first
nums|select('odd')|list ~ nums|reject('odd')|list|string ~ [0, 1, '', 'a', none]|select|list|string
nums|select('divisibleby', 3)|list
nums|unique|list ~ words|unique|list|string ~ ['a', 'A']|unique|list|string ~ ['a', 'A']|unique(true)|list|string
nums|sum ~ people|sum(attribute='age') ~ nums|sum(start=10)
['a', 'b']|sum(start='')
nums|min ~ nums|max ~ words|min ~ []|max ~ people|max(attribute='age')
nums|first ~ nums|last ~ ''|first ~ []|last ~ 'abc'|last
nums|reverse|list ~ 'abc'|reverse
nums|list ~ d|list|string ~ 'abc'|list|string ~ none|default('x')|list|string
nums|batch(3)|list ~ nums|batch(3, 'x')|list|string
d|items|list ~ d.items()|list|string ~ d.keys()|string ~ d.values()|list|string
d|dictsort ~ d|dictsort(true)|string ~ {'a': 2, 'b': 1}|dictsort(false, 'value')|string
d|tojson
d|tojson(indent=2)
d|tojson(ensure_ascii=true)
d|tojson(sort_keys=true)
people|tojson(separators=(',', ':'))
u|tojson(ensure_ascii=true) ~ quote|tojson ~ '\\x7f'|tojson(ensure_ascii=true)
(1, 'a', none, true, 1.0, 1e20, 1e-7, [])|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
[]|tojson(indent=2) ~ {}|tojson(indent=2) ~ [[]]|tojson(indent=1)
missing|tojson
range(3)|tojson
quote ~ [quote]|string
[u, sp, '\\x85', "'", '"', '\u00ad', '\u3000', '\U000e0001']
[1, 2.0, -0.0, 1e16, 1e15, 123456789.123, 1e-4, 0.00001, 1e100, 1.5e300, none, true, (1,), (), {}]
1/3 ~ ' ' ~ 7//2 ~ ' ' ~ -7//2 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 % -3 ~ ' ' ~ 7.5 // 2 ~ ' ' ~ -7.5 % 2 ~ ' ' ~ 2**10 ~ ' ' ~ 2**-1 ~ ' ' ~ 2**0.5
1 + 2 * 3 - 4 / 2 ~ 'x' ~ 1 + 2
2 ** 3 ** 2 ~ ' ' ~ -2 ** 2 ~ ' ' ~ (-2) ** 2
not true == false
1 < 2 < 3 ~ (1 < 3 < 2)|string ~ (3 > 2 >= 2 != 1)|string
1 == 1.0 ~ (true == 1)|string ~ ('1' == 1)|string ~ ([1] == (1,))|string ~ (none == false)|string ~ ({'a': 1, 'b': 2} == {'b': 2, 'a': 1})|string
[1, 2] < [1, 3] ~ ('a' < 'b')|string ~ ((1, 2) < (1, 2, 0))|string
1 < 'a'
none < 1
'a' in d ~ ('z' in d)|string ~ (2 in nums)|string ~ ('ell' in s)|string ~ ('' in '')|string ~ (1 not in nums)|string
1 in 'abc'
missing in nums ~ ('a' in missing)|string
1 in 5
'a' * 3 ~ [1] * 2 ~ 2 * 'x' ~ 'x' * -1 ~ true * 'y'
[1] + [2] ~ (1,) + (2,)
[1] + (2,)
'a' + none
missing + 'a'
n and s ~ (empty or 'dflt') ~ (none and 1)|string ~ (0 or missing)
'yes' if n > 3 else 'no' ~ ('a' if false) ~ 'z'
missing is defined ~ (missing.x is defined)
d.zzz is defined ~ (d.zzz.y is defined)
d.b ~ d['b'] ~ d.a.1.x ~ d['a'][0] ~ d.zzz ~ d['zzz'] ~ nums.1 ~ nums[-1] ~ nums[99]
d.items is callable ~ d.get('q', 'no') ~ d.get('b') ~ d.get('q')
d.pop('b')
nums.append(1)
d.update({})
s.__class__
''.__class__.__mro__
s is string ~ (n is string)|string ~ (n is number)|string ~ (t is number)|string ~ (t is integer)|string ~ (f is float)|string ~ (n is integer)|string
d is mapping ~ (d is iterable)|string ~ (d is sequence)|string ~ (s is sequence)|string ~ (n is iterable)|string ~ (missing is iterable)|string
none is none ~ (missing is none)|string ~ (none is defined)|string ~ (t is true)|string ~ (1 is true)|string ~ (0 is false)|string
3 is odd ~ (4 is even)|string ~ (9 is divisibleby 3)|string ~ (9 is divisibleby(2))|string
'abc' is lower ~ ('ABC' is upper)|string ~ ('12' is lower)|string
n is eq 7 ~ (n is ne(7))|string ~ (n is gt 3)|string ~ (n is lessthan 3)|string ~ (2 is in nums)|string
none is sameas none ~ (true is sameas true)|string ~ (1 is sameas 1)|string ~ (1 is sameas true)|string
n is not defined ~ (n is not string and n is number)|string
missing|default('d') ~ none|default('d') ~ none|default('d', true) ~ empty|default('e', boolean=true) ~ missing|d(1)
'42'|int ~ ' 42 '|int ~ '4.7'|int ~ 'x'|int ~ 'x'|int(-1) ~ '0x1f'|int(base=16) ~ '1_000'|int ~ 4.9|int ~ -4.9|int ~ none|int(3) ~ true|int
'2.50'|float ~ 'x'|float ~ 'x'|float(1.5) ~ '1e3'|float ~ 3|float ~ 'inf'|float ~ ' 1_0.5 '|float
2.5|round ~ 3.5|round ~ 2.675|round(2) ~ 7|round ~ 2.1|round(0, 'ceil') ~ 2.19|round(1, 'floor') ~ -2.5|round
-3|abs ~ neg|abs ~ -2.5|abs ~ true|abs
'a b_c d-e'|wordcount
'foo bar baz qux'|truncate(9) ~ 'foo bar baz qux'|truncate(11, true, '..', 0) ~ 'short'|truncate(5)
'x'|center(5) ~ '|' ~ 'ab'|center(5) ~ '|'
html|e ~ html|escape|upper ~ '<i>'
html|safe ~ html
(html|e) + '<x>' ~ '<y>'
'a'|safe is escaped
d|attr('items') is callable ~ d|attr('b') is defined
range(5)|list ~ range(2, 8, 3)|list|string ~ range(5, 0, -2)|list|string ~ range(3)|string ~ range(0, 9, 2)|string ~ range(3)[1]
range(3)|length ~ (range(3) is sequence)|string
nums|select('odd')|length
nums|map('string')|first ~ (nums|map('string') is string)|string
(nums|select('gt', 99)) is defined ~ ('T' if nums|select('gt', 99) else 'F')
dict(a=1, b=2) ~ dict([('x', 1)], y=2)|string ~ dict({'q': 1})|string
namespace(a=1).a ~ namespace(a=1)|string
{'a': 1, 'a': 2} ~ {1: 'x', 1.0: 'y', true: 'z'}|string
{[1]: 2}
[1, 2,] ~ (1, 2,)|string ~ {'a': 1,}|string
true ~ True ~ false ~ none ~ None
0x1F ~ 0b101 ~ 0o17 ~ 1_000 ~ 1e3 ~ 1.5E-2 ~ .5
0x1F ~ ' ' ~ 0b101 ~ ' ' ~ 0o17 ~ ' ' ~ 1_000 ~ ' ' ~ 1e3 ~ ' ' ~ 1.5E-2
'\\x41\\u00e9\\U0001F600\\101\\q\\\\' ~ "\\"" ~ '\\''
'a' 'b' "c"
s|upper|lower|length
-5|abs ~ -(5|abs)
loop is defined
strftime_now('%d %b %Y')
raise_exception('boom')
cycler('a', 'b').next() ~ cycler('a').current
joiner()() ~ joiner('x')()
nums[0:2] ~ nums[:] ~ nums[::-1] ~ nums[-2:] ~ nums[5:] ~ nums[3:0:-1]
nums[::0]
nums['x'] is defined
n.foo is defined ~ (none.x is defined)|string
n[0] is defined
s.nothing is defined
s['upper']()
words[1][0] ~ words[1].lower()[1:]
(nums, s)[1][0]
[[1, 2], [3]]|sum(start=[])
people[0].tags|join('/') ~ people|map(attribute='name')|map('lower')|sort|join(',')
[3, 'a']|sort
[none, none]|sort
[[2, 'b'], [1, 'a']]|sort|string
d|length ~ {}|length ~ missing|length
n|length
[]|first is defined
none.x
missing.x.y
missing()
missing[0]
missing == other_missing
missing == none
s()
d.a.1.x is none
(1, 2)|string ~ (1)|string
'abc'|string|list|last
u|list|length ~ u|wordcount
'A\u0130I\u03a3'|lower ~ '\u01c6'|title ~ '\ufb01'|upper
'x'.join(d)
d.keys()|list|sort|join
d.items()|list|length ~ d.items()|first|string
'a.b.c'.split('.')[-1]
"a" "b"|upper
"</think>x</think>y".split('</think>')[-1].lstrip('\\n')
""".strip("\n").split("\n")

TEMPLATES = r"""
{% for x in nums %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }}:{{ loop.previtem }}<{{ loop.nextitem }};{% endfor %}
{% for x in nums if x > 1 %}{{ loop.index0 }}={{ x }},{% else %}none{% endfor %}
{% for x in [] %}{{ x }}{% else %}empty{% endfor %}
{% for x in missing %}{{ x }}{% else %}undefined{% endfor %}
{% for x in none %}{{ x }}{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }}{% endfor %}{% for c in 'a\u00e9' %}[{{ c }}]{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in nums %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in nums %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in nums recursive %}{{ x }}{% if loop.depth < 3 and x > 2 %}({{ loop([x - 1, x]) }}){% endif %}{% endfor %}
{% for x in nums %}{{ loop.cycle('a', 'b', 'c') }}{{ loop.changed(x) }}{% endfor %}
{% for p in people %}{% for t in p.tags %}{{ loop.index }}{{ t }}{% endfor %}{{ loop.index }}{% endfor %}
{% set x = 1 %}{% for i in nums %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}
{% set ns = namespace(x=0) %}{% for i in nums %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% set ns = namespace(x=0) %}{% set ns.y = 5 %}{{ ns.y }}{{ ns.zz is defined }}{{ ns['x'] }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = (3, 4) %}{{ c }}{{ d2 }}{% set e = 1, %}{{ e }}
{% set a, b = [1] %}
{% set x %}hello {{ s }}{% endset %}[{{ x }}]{% set y | upper | trim %} abc {% endset %}[{{ y }}]
{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}
{% if missing %}a{% elif empty %}b{% elif nums %}c{% endif %}
{% if x is not defined %}{% set x = 1 %}{% endif %}{{ x }}
{% macro m(a, b=2, *c) %}{% endmacro %}
{% macro m(a, b=a) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }}
{% macro m(a) %}{{ a is defined }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}{{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, z=2) }}
{% macro f(n) %}{% if n > 1 %}{{ n * f(n - 1)|int }}{% else %}1{% endif %}{% endmacro %}{{ f(5) }}
{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body {{ s }}{% endcall %}
{% macro m(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(x, i) m(nums) %}{{ i }}:{{ x }} {% endcall %}
{% macro m() %}{{ caller is defined }}{{ caller }}{% endmacro %}{{ m() }}
{% macro m() %}{{ y }}{% endmacro %}{% set y = 5 %}{{ m() }}
{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}
{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}
{% macro m() %}{% set x = 9 %}{{ x }}{% endmacro %}{{ m() }}{{ x is defined }}{{ m.name }}
{% filter upper %}abc {{ s }}{% endfilter %}|{% filter replace('a', 'b')|upper %}banana{% endfilter %}
{% with a = 1, b = s %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% with %}{% set q = 2 %}{{ q }}{% endwith %}{{ q is defined }}
{# comment #}x{#- c -#} y {#+ c +#} z
{% raw %}{{ raw }} {% if %}{% endraw %}x{% raw -%}  a  {%- endraw %}  b
  {% if true %}  
  a  
  {% endif %}  
 b
a {%- if true -%} b {%- endif -%} c
a  {{- ' x ' -}}  b
   {%+ if true %}x{% endif +%}
 y
{{ 1 }}

{{ 2 }}

{% if true %}

x
{% endif %}
{{ {'a': {'b': 1}}.a.b }}{{ {'x': '}}'} }}
{{ '{% if %}' }}{{ "{{ }}" }}{{ '{# #}' }}
{{ 'multi
line' }}
text { not % tag } # here {
{% set messages = [{'role': 'user', 'content': 'hi'}] %}{% for m in messages %}{{ '<|' + m.role + '|>' + m['content'] }}{% endfor %}
{{ 1, 2 }}
{{ x if x is defined else 'no x' }}{{ 'a' if x }}
{% for i in range(3) %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for i in nums %}{% set loop_index = loop.index %}{% for j in [1] %}{{ loop_index }}{{ loop.index }}{% endfor %}{% endfor %}
{% set x = namespace(a=[]) %}{% set x.a = x.a + [1] %}{{ x.a }}
{% set it = nums|map('string') %}{{ it|join }}|{{ it|join }}
{% set it = nums|select('odd') %}{{ it|first }}|{{ it|list }}
{% if false %}{{ missing.x.y }}{% endif %}ok{{ true or missing.x.y }}
{% block a %}{% endblock
{% if %}x{% endif %}
{% for in x %}{% endfor %}
{% set 1 = 2 %}
{% endif %}
{{ }}
{{ a b }}
{{ (1 }}
{% if a %}
{{ 1 is nosuchtest }}
{{ 1|nosuchfilter }}
{% nosuchtag %}
{{ 'unterminated }}
{% break %}
{% macro m() %}{% break %}{% endmacro %}
{% set ns.x = 1 %}
""".strip("\n")

# Templates of several lines.
BLOCKS = [
    "  {% if true %}  \n  a  \n  {% endif %}  \n b\n",
    "{% for x in nums %}\n    {{ x }}\n{% endfor %}\nend",
    "{%- for x in nums -%}\n    {{- x }}\n{%- endfor %}\n\nend\n\n",
    "\t{% set x = 1 %}\n\t{{ x }}\t{% if x %}\n\ty{% endif %}\n",
    "a\r\nb\r{% if true %}\r\nc{% endif %}\r\n",
    "{# c #}\n  {# d #}  \nx\n   {#- e #}\ny",
    "{% raw %}\n  {{ x }}\n  {% endraw %}\nz\n  {% raw -%}\n q {% endraw %}",
    " {% macro m(a) %}\n  [{{ a }}]\n {% endmacro %}\n{{ m(1) }}{{ m('b') }}",
    "x {% if true %} y {% endif %} z\n  {%- if true +%}\n  w{% endif %}",
    "{{ 1 }}\n{{ 2 -}}\n\n{{- 3 }}\n",
    "{% if a %}b{% else %}\nc{% endif -%}   \n\n d",
    "\n\n{% set _ = 1 %}\n\n",
    "   {%+ if true %}x{% endif +%}\n y",
    "{{ {'k': [1, {'z': '}}'}]} }}",
]


def rows():
    for expression in EXPRESSIONS:
        yield "{{ " + expression + " }}", True
    for template in TEMPLATES.split("\n"):
        yield template, True
    for template, trim in itertools.product(BLOCKS, (True, False)):
        yield template, trim


with (HERE / "cases.jsonl").open("w") as out:
    for template, trim in rows():
        row = {"template": template, "context": CONTEXT, "options": {"trim_blocks": trim, "lstrip_blocks": trim}}
        used = [name for name in CONTEXT if name in template]
        row["context"] = {name: CONTEXT[name] for name in used}
        try:
            row["expected"] = environment(trim).from_string(template).render(**row["context"])
            if " object at 0x" in row["expected"]:
                continue  # an address of this run
        except Exception:
            row["expect_error"] = True
        out.write(json.dumps(row) + "\n")
