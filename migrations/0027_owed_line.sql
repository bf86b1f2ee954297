-- The one index of owed beside its primary key begins with the line: a queue at one priority, in order of due time. Every
-- line is a range of its own. So a runner reads the lines that it serves, and a paused, limited, unserved or merely long
-- queue in front costs it nothing. The index on the due time alone mixed all queues: behind a million overdue jobs of
-- another queue, an entry that Redis had lost came back after minutes.
--
-- It costs a claim and a settle what the old one cost, because neither moves a job to another line.
ALTER TABLE owed ADD INDEX owed_line (queue, priority, execute_at);
ALTER TABLE owed DROP INDEX owed_due;
