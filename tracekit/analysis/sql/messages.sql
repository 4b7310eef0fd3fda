-- Which ranks send to each other, and who begins: in how many of the steps :first to :last a rank
-- sends to another before it gets anything from it, and in how many it gets first.
WITH each_step AS (
  SELECT
    rank, peer_rank AS peer, step,
    MIN(CASE WHEN collective_op = 'send' THEN start_ns END) AS sent_ns,
    MIN(CASE WHEN collective_op = 'recv' THEN start_ns + duration_ns END) AS got_ns
  FROM spans
  WHERE attempt = :attempt AND kind = 'comm' AND step BETWEEN :first AND :last
    AND name <> 'wait' AND collective_op IN ('send', 'recv') AND peer_rank IS NOT NULL
  GROUP BY rank, peer_rank, step
)
SELECT
  rank, peer,
  COUNT(*) AS steps,
  SUM(CASE WHEN sent_ns IS NOT NULL AND (got_ns IS NULL OR sent_ns < got_ns) THEN 1 ELSE 0 END)
    AS sends_first,
  SUM(CASE WHEN got_ns IS NOT NULL AND (sent_ns IS NULL OR got_ns <= sent_ns) THEN 1 ELSE 0 END)
    AS gets_first
FROM each_step
GROUP BY rank, peer
ORDER BY rank NULLS LAST, peer NULLS LAST
