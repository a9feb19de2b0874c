"""What a folder of compiled code needs: who may have written to it, and who of many processes builds."""
