-- A database of facts from before its schema had versions, with one row in each table.
BEGIN TRANSACTION;
CREATE TABLE audits (
	id INTEGER NOT NULL,
	application_id VARCHAR(200) NOT NULL,
	audit_id VARCHAR(60) NOT NULL,
	time_ms BIGINT NOT NULL,
	task VARCHAR(40) NOT NULL,
	first_batch BIGINT NOT NULL,
	last_batch BIGINT NOT NULL,
	records BIGINT NOT NULL,
	seconds FLOAT NOT NULL,
	verdict VARCHAR(40) NOT NULL,
	position TEXT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "audits" VALUES(1,'app','audit_id of audits',3,'task of audits',5,6,7,8.5,'ok','{}');
CREATE TABLE drills (
	id INTEGER NOT NULL,
	application_id VARCHAR(200) NOT NULL,
	drill_id VARCHAR(40) NOT NULL,
	started_ms BIGINT NOT NULL,
	ended_ms BIGINT NOT NULL,
	verdict VARCHAR(40) NOT NULL,
	rto_s FLOAT,
	rpo_offsets BIGINT,
	rpo_s FLOAT,
	key_count BIGINT NOT NULL,
	byte_count BIGINT NOT NULL,
	report TEXT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "drills" VALUES(1,'app','drill_id of drills',3,4,'ok',6.5,7,8.5,9,10,'{}');
CREATE TABLE events (
	id INTEGER NOT NULL,
	application_id VARCHAR(200) NOT NULL,
	topology_version VARCHAR(200) NOT NULL,
	instance INTEGER NOT NULL,
	time_ms BIGINT NOT NULL,
	kind VARCHAR(40) NOT NULL,
	body TEXT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "events" VALUES(1,'app','topology_version of events',3,4,'state','{}');
CREATE TABLE lag_samples (
	id INTEGER NOT NULL,
	application_id VARCHAR(200) NOT NULL,
	time_ms BIGINT NOT NULL,
	topic VARCHAR(249) NOT NULL,
	topic_partition INTEGER NOT NULL,
	low_offset BIGINT NOT NULL,
	stable_offset BIGINT NOT NULL,
	end_offset BIGINT NOT NULL,
	committed_offset BIGINT,
	PRIMARY KEY (id)
);
INSERT INTO "lag_samples" VALUES(1,'app',2,'topic of lag_samples',4,5,6,7,8);
CREATE TABLE verdicts (
	id INTEGER NOT NULL,
	application_id VARCHAR(200) NOT NULL,
	check_name VARCHAR(60) NOT NULL,
	time_ms BIGINT NOT NULL,
	subject VARCHAR(300) NOT NULL,
	verdict VARCHAR(40) NOT NULL,
	message TEXT NOT NULL,
	evidence TEXT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "verdicts" VALUES(1,'app','check_name of verdicts',3,'subject of verdicts','ok','message of verdicts','{}');
CREATE INDEX audits_of_application ON audits (application_id, task, id);
CREATE INDEX drills_of_application ON drills (application_id, ended_ms);
CREATE INDEX events_of_application ON events (application_id, time_ms);
CREATE INDEX lag_samples_of_application ON lag_samples (application_id, time_ms);
CREATE INDEX verdicts_of_application ON verdicts (application_id, check_name, time_ms);
COMMIT;
