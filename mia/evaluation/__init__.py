"""Evaluation: data sets, a resumable runner, a report with honest denominators."""
