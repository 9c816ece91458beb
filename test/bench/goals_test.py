#!/usr/bin/env python3
"""python3 -m unittest goals_test, in this directory: what goals.py makes of a small recorded run."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import goals

HERE = os.path.dirname(os.path.abspath(__file__))
RUN = os.path.join(HERE, 'testdata', 'run.jsonl')


def found(rows):
    return {r.goal.name: r for r in goals.results(rows)}


class Goals(unittest.TestCase):
    def setUp(self):
        self.rows = goals.read([RUN])
        self.found = found(self.rows)

    def check(self, name, value, verdict):
        r = self.found[name]
        self.assertAlmostEqual(r.value, value, msg=name)
        self.assertEqual(r.verdict, verdict, name)

    def test_the_median_counts(self):
        self.check('A1', 50000 / 4000, 'met')
        self.check('E3', 15 / 90, 'missed')

    def test_of_several_shapes_the_one_the_peer_does_best_counts(self):
        self.check('A1s', 60000 / 4000, 'met')  # JetStream does worse with one connection
        self.check('B1a', 50000 / 25000, 'missed')  # and here better
        self.check('E3s', 9 / 90, 'met')  # of CPU time the least is best
        own = self.rows + [{'Label': 'native-jetstream:always', 'Mode': 'pub', 'Style': 'sync', 'Size': 128, 'Conc': 64, 'MsgsPerS': 10000}]
        self.assertAlmostEqual(found(own)['A1'].value, 5)
        self.assertAlmostEqual(found(own)['B1a'].value, 2)

    def test_what_nats_bench_says(self):
        self.check('B1b', 50000 / 40000, 'missed')
        self.check('B2', 600000 / 150000, 'missed')  # by its own tool, which is faster than our driver

    def test_shapes_of_grpc(self):
        self.check('P6a', 80000 / 100000, 'met')
        self.check("P6a'", 50000 / 80000, 'missed')

    def test_subscriptions_differ_by_kind_size_and_consumers(self):
        def one(label, style, size, conc, rate):
            return {'Label': label, 'Mode': 'consume', 'Style': style, 'Size': size, 'Conc': conc, 'MsgsPerS': rate}
        keyed = 'levee-subscription-keyed:periodic'
        results = found([
            one(keyed, 'keyshared', 1024, 4, 90), one(keyed, 'shared', 1024, 4, 100), one(keyed, 'keyshared', 128, 4, 30), one(keyed, 'shared', 128, 4, 60),
            one('levee-subscription-slow:periodic', 'shared', 1024, 4, 95), one('levee-subscription-fast:periodic', 'shared', 1024, 3, 100),
        ])
        for name, value in {'S2a': 0.9, 'S2b': 0.5, 'S5': 0.95}.items():
            self.assertAlmostEqual(results[name].value, value, msg=name)
        self.assertIsNone(results['S1'].value)

    def test_missed(self):
        self.check('A3', 0.5, 'missed')

    def test_the_shape_has_to_be_the_same(self):
        self.check('P2b', 270000 / 6500, 'met')  # not the row with 16 records a batch

    def test_latency_by_flush(self):
        self.check('A4b', 1.5, 'met')

    def test_two_fields_of_one_row(self):
        self.check('P4d', 61, 'missed')

    def test_bounds(self):
        self.check('P2c', 60, 'met')
        self.check('G2b', 0.9, 'met')

    def test_figures_that_are_made_of_two_fields(self):
        self.check('G3a', 0.1 / 2, 'met')
        self.check('P7a', 4000 / 7000, 'met')

    def test_tiers(self):
        def one(label, mode, **fields):
            return {'Label': 'tiers-' + label, 'Mode': mode, **fields}
        behind = {'At25': 0, 'At50': 33.5, 'At100': 67, 'Most': 67, 'Held25': 0, 'Held50': 0, 'Held100': 2}
        rows = [
            one('export:off', 'paced', P99=2000, Offered=100, MsgsPerS=100, LagGrowth=0), one('export:local', 'paced', P99=2200, Offered=100, MsgsPerS=100, LagGrowth=0.01, Lag=behind),
            one('export:s3', 'paced', P99=3000, Offered=100, MsgsPerS=90, LagGrowth=0.2, Lag=behind),
            one('valkey:levee', 'pub', Style='batch', Size=1024, Batch=256, MBPerS=300), one('valkey:levee', 'pub', Style='batch', Size=65536, Batch=1, MBPerS=200),
            one('valkey:raw', 'pub', Style='async', Size=262144, Batch=64, MBPerS=500), one('valkey:raw', 'pub', Style='async', Size=65536, Batch=64, MBPerS=800),
            one('takeover:levee', 'ready', Msgs=1000000, Size=1000, Secs=2), one('takeover:xrange', 'consume', Batch=16, MBPerS=800), one('takeover:xrange', 'consume', Batch=64, MBPerS=1250),
            one('cold:levee', 'consume', Size=1024, MBPerS=350), one('cold:get', 'consume', Size=1 << 20, MBPerS=500), one('cold:get', 'consume', Size=8 << 20, MBPerS=400),
            one('cold:first', 'first', Trips=2), one('cold:local', 'consume', MBPerS=450), one('cold:reader', 'consume', MBPerS=250),
        ]
        results = found(rows)
        for name, value, verdict in (('R1a', 1.1, 'met'), ('R1b', 1.5, 'missed'), ('R1c', 0.01, 'met'), ('R1d', 0.2, 'missed'), ('R2a', 0.6, 'met'),
                                     ('R2c', 0.25, 'missed'), ('R3', 0.4, 'missed'), ('R4a', 0.7, 'met'), ('R4b', 2, 'met'),
                                     ('R4c', 0.9, 'informative'), ('R4d', 0.5, 'missed')):
            self.assertAlmostEqual(results[name].value, value, msg=name)
            self.assertEqual(results[name].verdict, verdict, name)
        self.assertEqual(results['R2b'].verdict, 'not measured')  # of 64 records a batch there is none
        self.assertEqual([w for w in goals.warnings(rows) if 'offered' in w],
                         ['less was published than was offered: tiers-export:s3; their latencies say how long, not how fast'])
        self.assertEqual(goals.lags(rows), [('export to a directory', [0, 33.5, 67, 67, 0, 0, 2]), ('export to S3', [0, 33.5, 67, 67, 0, 0, 2])])
        self.assertIn('| export to S3 | 0 | 33.50 | 67.00 | 67.00 | 0 | 0 | 2.00 |', goals.markdown([], [], [], goals.lags(rows)))
        self.assertTrue(any(line.split()[-7:] == ['0', '33.50', '67.00', '67.00', '0', '0', '2.00'] for line in goals.text([], [], [], goals.lags(rows))))

    def test_memory_is_the_most_of_all_loads(self):
        self.check('G4', 110, 'missed')

    def test_not_measured(self):
        for name in ('A2', 'C5a', 'K1', 'G1a', 'A10', 'A4a'):
            self.assertIsNone(self.found[name].value, name)
            self.assertEqual(self.found[name].verdict, 'not measured', name)
        for r in goals.results([]):
            self.assertEqual(r.verdict, 'not measured', r.goal.name)

    def test_a_peer_that_did_nothing_is_not_measured(self):
        rows = [r for r in self.rows if not r['Label'].startswith('jetstream')]
        rows.append({'Label': 'jetstream:always', 'Mode': 'pub', 'Style': 'sync', 'Size': 128, 'Conc': 64, 'MsgsPerS': 0})
        self.assertEqual(found(rows)['A1'].verdict, 'not measured')

    def test_names_differ(self):
        names = [g.name for g in goals.GOALS]
        self.assertEqual(len(names), len(set(names)))

    def test_warnings(self):
        self.assertEqual(goals.warnings(self.rows), [])
        noisy = self.rows + [
            {'Label': 'fsync-ref', 'MsgsPerS': 2000},
            {'Label': 'levee:nonreliable-fanout1', 'Dropped': 7, 'Errors': 1},
        ]
        said = goals.warnings(noisy)
        self.assertEqual(len(said), 3, said)
        self.assertIn('2,000 to 5,000', said[0])

    def run_it(self, *args):
        return subprocess.run([sys.executable, os.path.join(HERE, 'goals.py'), *args], capture_output=True, text=True, check=False)

    def test_text(self):
        done = self.run_it(RUN)
        self.assertEqual(done.returncode, 0, done.stderr)
        line = next(x for x in done.stdout.splitlines() if x.startswith('A1 '))
        self.assertEqual(line.split()[-7:], ['50,000', '4,000', '12.50', '>=', '12.00', 'met', '3,1'])

    def test_markdown(self):
        done = self.run_it('--markdown', RUN)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('| A3 | on_commit, 64 sync publishers, 128 B, by Redis always | 50,000 | 100,000 | 0.5 | ≥ 0.9 | missed |', done.stdout)
        goals_table, figures = done.stdout.split('\n\n')
        self.assertTrue(all(x.count('|') == 8 for x in goals_table.splitlines()), goals_table)
        self.assertTrue(all(x.count('|') == 7 for x in figures.splitlines()), figures)
        self.assertIn('| log, on_commit, 64 appenders, 16 partitions | 90,000 | 700 | 1,500 | 22,500 | 4.00 |', figures)

    def test_figures_without_a_goal(self):
        self.assertEqual([words for words, _ in goals.figures(self.rows)],
                         ['device: by 16 threads, of different files', 'log, on_commit, 64 appenders, 16 partitions'])
        self.assertEqual(goals.figures([]), [])

    def test_the_table_goes_into_a_page(self):
        with tempfile.TemporaryDirectory() as folder:
            page, run = os.path.join(folder, 'page.md'), os.path.join(folder, 'run.jsonl')
            with open(page, 'w', encoding='utf-8') as f:
                f.write(f'# Words\n\n{goals.BEGIN}\n| old |\n{goals.END}\n\nMore words\n')
            with open(run, 'w', encoding='utf-8') as f:
                f.write(json.dumps({'Label': 'facts', 'Mode': 'facts', 'Kernel': 'Linux 9', 'CPU': '3 cores'}) + '\n')
            for _ in range(2):  # a second run replaces what the first wrote
                self.assertEqual(self.run_it('--into=' + page, run, RUN).returncode, 0)
                with open(page, encoding='utf-8') as f:
                    text = f.read()
                self.assertTrue(text.startswith(f'# Words\n\n{goals.BEGIN}\nGoals: '), text)
                self.assertIn('\n* on_commit, 64 sync publishers, 128 B: 50,000, JetStream sync always 4,000: 12.50 times (A1)\n', text)
                self.assertIn('\n\n* Kernel: Linux 9\n* CPU: 3 cores\n\n| goal |', text)
                self.assertTrue(text.endswith(f'|\n{goals.END}\n\nMore words\n'), text)
                self.assertEqual(text.count('| A1 |'), 1)
            new = os.path.join(folder, 'new.md')
            self.assertEqual(self.run_it('--into=' + new, RUN).returncode, 0)
            with open(new, encoding='utf-8') as f:
                self.assertTrue(f.read().startswith(goals.BEGIN + '\nGoals: '))

    def test_strict(self):
        self.assertEqual(self.run_it('--strict', RUN).returncode, 1)

    def test_what_is_not_a_row_is_said(self):
        done = self.run_it(os.path.join(HERE, 'goals.py'))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('goals.py:1: not a row', done.stderr)


if __name__ == '__main__':
    unittest.main()
