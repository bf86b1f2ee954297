-- The host that a job calls, such as example.com or example.com:8443, in the form of internal/handlers/http/host.rs. NULL
-- if its kind knows none, and for jobs that a binary from before this column accepted.
--
-- Limits that are shared by host count jobs by it. The claim of a job reads it only while there is such a limit, and no
-- claim parses a payload. It has no index: every job would pay for that, and a search by host reads the rows in its range
-- anyway.
ALTER TABLE jobs ADD COLUMN host VARBINARY(255) NULL;
